"""The landing page, the reference page with its assets, and the OpenAPI document."""

import hashlib
import html
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from importlib import resources
from string import Template
from typing import Any

import msgspec

from petstore import __version__
from petstore.errors import STATUS_OF_CODE
from petstore.operations import OPERATIONS, Operation, deprecated_operations, end_of_items
from petstore.rate_limits import STRIKES_MAX
from petstore.settings import BASES, DEFAULTS, Settings
from petstore.web.deprecation import deprecation_values
from petstore.web.replies import REJECTIONS
from petstore.web.requests import Request
from petstore.web.static_files import IMMUTABLE, StaticFile, quality

HTML = "text/html; charset=utf-8"
MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
OWN_ASSETS = (
    "base.css", "landing.css", "landing.js", "paw.svg", "parts.js", "reference.css", "reference.js", "samples.js",
)  # fmt: skip
SWAGGER_UI = "swagger-ui-bundle.js"

_DIRECTORY = resources.files("petstore.web").joinpath("static")

Json = dict[str, Any]


class Documents:
    """The documents, with both base addresses filled in.

    `live` and `staging` are paths or URLs that end with the version segment.
    """

    def __init__(self, live: str, staging: str, settings: Settings = DEFAULTS) -> None:
        assets = f"docs/assets/{_version_of_assets()}"
        values = {"assets": assets, "version": __version__, "live": html.escape(live), "staging": html.escape(staging)}
        self._landing = StaticFile(HTML, _rendered("landing.html", values), vary="Accept, Accept-Encoding")
        self._links = StaticFile("application/json", _links(live, staging), vary="Accept, Accept-Encoding")
        self._files = {"/docs": StaticFile(HTML, _rendered("reference.html", values))}
        for name in OWN_ASSETS:
            self._files[f"/{assets}/{name}"] = _asset(name, name)
        self._files[f"/{assets}/{SWAGGER_UI}"] = _asset(SWAGGER_UI, f"swagger-ui/{SWAGGER_UI}")
        # Each sunset changes the OpenAPI document, so there is one document before the first sunset and one after each.
        self._sunsets = sorted({operation.end for operation in deprecated_operations()})
        self._openapi = {
            path: [
                StaticFile(media_type, _document(live, staging, now, settings, encode)) for now in (0.0, *self._sunsets)
            ]
            for path, media_type, encode in (
                ("/openapi.json", "application/json", as_json),
                ("/openapi.yaml", "application/yaml", msgspec.yaml.encode),
            )
        }

    def find(self, request: Request, now: float) -> StaticFile | None:
        path = request.path
        if path == "/":
            return self._landing if _wants_html(request) else self._links
        if path in self._openapi:
            return self._openapi[path][bisect_right(self._sunsets, now)]
        return self._files.get(path)


def _wants_html(request: Request) -> bool:
    """Whether the client prefers HTML, as a browser does. A program that accepts any media type receives JSON."""
    accept = request.fields.get("accept", "")
    wanted = quality(accept, "text/html", "text/*")
    return wanted > 0 and wanted >= quality(accept, "application/json", "application/*")


def _version_of_assets() -> str:
    """Returns a hash of all assets. Asset URLs contain the hash, so that browsers can cache assets forever."""
    digest = hashlib.sha256()
    for name in (*OWN_ASSETS, "swagger-ui/VERSION"):
        digest.update(_read(name))
    return digest.hexdigest()[:16]


def _read(name: str) -> bytes:
    return _DIRECTORY.joinpath(name).read_bytes()


def _asset(name: str, path: str) -> StaticFile:
    return StaticFile(MEDIA_TYPES[name.rpartition(".")[2]], lambda: _read(path), cache=IMMUTABLE)


def _rendered(name: str, values: dict[str, str]) -> Callable[[], bytes]:
    return lambda: Template(_read(name).decode()).substitute(values).encode()


def _document(
    live: str, staging: str, now: float, settings: Settings, encode: Callable[[Json], bytes]
) -> Callable[[], bytes]:
    return lambda: encode(openapi_document(live, staging, now, settings))


def openapi_document(live: str, staging: str, now: float, settings: Settings = DEFAULTS) -> Json:
    """Returns the OpenAPI document as of `now`, with these base addresses and with the limits from the settings.

    The base addresses can be relative to the document.
    """
    text = resources.files("petstore.web").joinpath("openapi.yaml").read_bytes()
    document = msgspec.yaml.decode(text, type=Json)
    values: dict[str, str | int] = {"version": __version__, "live": live, "staging": staging, **_limits(settings)}
    template = document.pop("x-deprecation")
    announced = []
    for operation in OPERATIONS:
        if now >= operation.end:
            del document["paths"][operation.path][operation.method.lower()]
        elif operation.deprecation is not None:
            own = {"method": operation.method, "path": operation.path}
            notice = filled(template, values | own | deprecation_values(operation.deprecation, live))
            _deprecate(document, operation, notice)
            announced.append(notice["guide"])
    info = document["info"]
    if announced:
        info["description"] += "\n" + "\n\n".join((template["heading"], *announced)) + "\n"
    if "://" in live:
        info["contact"]["url"] = live
    document["paths"] = {path: item for path, item in document["paths"].items() if item}
    for path, item in document["paths"].items():
        for described in item.values():
            if now >= end_of_items(path):
                described["responses"].get("201", {}).get("headers", {}).pop("Location", None)
            described["responses"] = dict(sorted(described["responses"].items()))
    _prune(document)
    made: Json = filled(document, values)
    return made


def _limits(settings: Settings) -> dict[str, str | int]:
    return {
        "address_per_minute": settings.address_per_minute,
        "ban_strikes": settings.ban_strikes or f"the key's per-minute limit or {STRIKES_MAX:,}, whichever is lower",
        "ban_seconds": settings.ban_seconds,
        "ban_ceiling": settings.ban_ceiling,
    }


_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def filled(node: Any, values: Mapping[str, str | int]) -> Any:
    """Replaces each {{name}} in a document with its value. Raises KeyError if a name has no value.

    A string that consists only of {{name}} is replaced with the value itself, which may be a number.
    """
    if isinstance(node, str):
        if whole := _PLACEHOLDER.fullmatch(node):
            return values[whole[1]]
        return _PLACEHOLDER.sub(lambda match: _as_text(values[match[1]]), node)
    if isinstance(node, dict):
        return {name: filled(each, values) for name, each in node.items()}
    return [filled(each, values) for each in node] if isinstance(node, list) else node


def _as_text(value: str | int) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _deprecate(document: Json, operation: Operation, notice: Json) -> None:
    """Marks an operation in the document as deprecated. `notice` is `x-deprecation` with all values filled in."""
    described = document["paths"][operation.path][operation.method.lower()]
    described["deprecated"] = True
    described["description"] = f"{notice['description']} {described['description']}"
    responses = described["responses"] | notice["responses"]
    for status in map(int, responses):
        is_rejection = status in REJECTIONS  # these requests are rejected before routing
        if is_rejection and status not in STATUS_OF_CODE.values():
            continue
        response = _resolved(responses[str(status)], document)
        headers = {name: {**header, "required": not is_rejection} for name, header in notice["headers"].items()}
        responses[str(status)] = {**response, "headers": headers | response["headers"]}
    described["responses"] = responses


def _prune(document: Json) -> None:
    """Removes unused components."""
    components = document["components"]
    for kind in ("responses", "headers", "schemas"):  # responses first, because they refer to headers and schemas
        used = _references(document)
        components[kind] = {
            name: part for name, part in components[kind].items() if f"#/components/{kind}/{name}" in used
        }


def _resolved(part: Json, document: Json) -> Json:
    """Returns the component that this part of the document refers to, or the part itself if it is not a reference."""
    if "$ref" not in part:
        return part
    _, components, kind, name = part["$ref"].split("/")
    component: Json = document[components][kind][name]
    return component


def _references(value: object) -> set[str]:
    """Returns the target of every `$ref` in a value."""
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()


def as_json(document: Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _links(live: str, staging: str) -> Callable[[], bytes]:
    root = live.removesuffix(BASES["live"])
    links = {
        "name": "Petstore",
        "version": __version__,
        "environments": {"live": live, "staging": staging},
        "reference": f"{root}/docs",
        "document": f"{root}/openapi.json",
        "guide": f"{root}/docs#guide",
    }
    return lambda: msgspec.json.format(msgspec.json.encode(links), indent=2)
