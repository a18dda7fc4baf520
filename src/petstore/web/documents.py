"""The documents for people and programs: the landing page, the reference page with its assets, OpenAPI."""

import hashlib
import html
import re
from collections.abc import Callable
from importlib import resources
from string import Template
from typing import Any

import msgspec

from petstore import __version__
from petstore.operations import OPERATIONS
from petstore.web.pets import SUNSET
from petstore.web.requests import Request
from petstore.web.static_files import IMMUTABLE, StaticFile, quality

HTML = "text/html; charset=utf-8"
MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
OWN_ASSETS = (
    "base.css", "landing.css", "landing.js", "paw.svg", "parts.js", "reference.css", "reference.js", "samples.js",
)  # fmt: skip
SWAGGER_UI = "swagger-ui-bundle.js"

_FOLDER = resources.files("petstore.web").joinpath("static")

Json = dict[str, Any]


class Documents:
    """For the two base addresses as clients see them, each a path or a URL that ends in the version segment."""

    def __init__(self, live: str, staging: str) -> None:
        assets = f"docs/assets/{_version_of_assets()}"
        values = {"assets": assets, "version": __version__, "live": html.escape(live), "staging": html.escape(staging)}
        self._landing = StaticFile(HTML, _rendered("landing.html", values), vary="Accept, Accept-Encoding")
        self._links = StaticFile("application/json", _links(live, staging), vary="Accept, Accept-Encoding")
        self._files = {"/docs": StaticFile(HTML, _rendered("reference.html", values))}
        for name in OWN_ASSETS:
            self._files[f"/{assets}/{name}"] = _asset(name, name)
        self._files[f"/{assets}/{SWAGGER_UI}"] = _asset(SWAGGER_UI, f"swagger-ui/{SWAGGER_UI}")
        # Each before and after the day on which an operation leaves the document.
        self._openapi = {
            path: tuple(StaticFile(media_type, _document(live, staging, now, encode)) for now in (0.0, SUNSET))
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
            return self._openapi[path][now >= SUNSET]
        return self._files.get(path)


def _wants_html(request: Request) -> bool:
    """Whether HTML is named: a browser does. A program that takes anything gets JSON."""
    accept = request.fields.get("accept", "")
    wanted = quality(accept, "text/html", "text/*")
    return wanted > 0 and wanted >= quality(accept, "application/json", "application/*")


def _version_of_assets() -> str:
    """Changes with any asset, and stands in the address of each: a browser may keep what it has for ever."""
    digest = hashlib.sha256()
    for name in (*OWN_ASSETS, "swagger-ui/VERSION"):
        digest.update(_read(name))
    return digest.hexdigest()[:16]


def _read(name: str) -> bytes:
    return _FOLDER.joinpath(name).read_bytes()


def _asset(name: str, path: str) -> StaticFile:
    return StaticFile(MEDIA_TYPES[name.rpartition(".")[2]], lambda: _read(path), cache=IMMUTABLE)


def _rendered(name: str, values: dict[str, str]) -> Callable[[], bytes]:
    return lambda: Template(_read(name).decode()).substitute(values).encode()


def _document(live: str, staging: str, now: float, encode: Callable[[Json], bytes]) -> Callable[[], bytes]:
    return lambda: encode(openapi_document(live, staging, now))


def openapi_document(live: str, staging: str, now: float) -> Json:
    """openapi.yaml at the time `now`, for the two base addresses. A base address may be relative to the document."""
    text = resources.files("petstore.web").joinpath("openapi.yaml").read_bytes()
    document = msgspec.yaml.decode(text, type=Json)
    if now >= SUNSET:
        _leave_out_deprecated(document)
    info = document["info"]
    info["version"] = __version__
    info["description"] = info["description"].replace("{live}", live).replace("{staging}", staging)
    if "://" in live:
        info["contact"]["url"] = live
    for server, url in zip(document["servers"], (live, staging), strict=True):
        server["url"] = url
    for item in document["paths"].values():
        for operation in item.values():
            operation["responses"] = dict(sorted(operation["responses"].items()))
    _prune(document)
    return document


def _leave_out_deprecated(document: Json) -> None:
    """The operation, its part of the guide, and the header that has its address."""
    info, paths = document["info"], document["paths"]
    info["description"] = re.sub(r"## Deprecation\n.*?(?=## )", "", info["description"], flags=re.DOTALL)
    for operation in OPERATIONS:
        if operation.deprecated:
            del paths[operation.path][operation.method.lower()]
            if not paths[operation.path]:
                del paths[operation.path]
    del paths["/pets"]["post"]["responses"]["201"]["headers"]["Location"]


def _prune(document: Json) -> None:
    """Remove the components that nothing refers to."""
    components = document["components"]
    for kind in ("responses", "headers", "schemas"):  # responses refer to the other two
        used = _references(document)
        components[kind] = {
            name: part for name, part in components[kind].items() if f"#/components/{kind}/{name}" in used
        }


def _references(value: object) -> set[str]:
    """The target of every `$ref` within."""
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()


def as_json(document: Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _links(live: str, staging: str) -> Callable[[], bytes]:
    root = live.removesuffix("/v1")
    links = {
        "name": "Petstore",
        "version": __version__,
        "environments": {"live": live, "staging": staging},
        "reference": f"{root}/docs",
        "document": f"{root}/openapi.json",
        "guide": f"{root}/docs#guide",
    }
    return lambda: msgspec.json.format(msgspec.json.encode(links), indent=2)
