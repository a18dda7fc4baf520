"""How pages are made: the templates, what they can say, and the files beside them."""

import datetime
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from petstore.pets import STATUSES
from petstore.usage import RESPONSE_CLASSES, SPANS, ResponseClass

KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

# How answers are called on plots and in tables.
ANSWER_NAMES: dict[ResponseClass, str] = {
    "ok": "OK",
    "client_error": "client errors (4xx)",
    "unauthorized": "no valid key (401)",
    "refused": "over the limit (429)",
    "banned": "banned (429)",
    "server_error": "server errors (5xx)",
}


def number(value: int) -> str:
    return f"{value:,}"


def moment(at: float | None, style: str = "medium") -> str | Markup:
    """A time that the browser turns into its own zone; here, and without scripts, it is UTC."""
    if at is None:
        return "never"
    utc = datetime.datetime.fromtimestamp(at, datetime.UTC)
    shown = utc.strftime("%Y-%m-%d %H:%M:%S" if style == "medium" else "%Y-%m-%d %H:%M")
    whole = utc.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Markup('<time datetime="{}" data-style="{}">{} UTC</time>').format(whole, style, shown)


def lasting(seconds: float) -> str:
    """A length of time in words: two units at most."""
    whole = max(0, int(seconds))
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if whole >= unit:
            rest = whole % unit // (unit // 24 if unit == 86_400 else 60)
            smaller = {"d": "h", "h": "min", "min": "s"}[name]
            return f"{whole // unit} {name}" + (f" {rest} {smaller}" if rest and name != "min" else "")
    return f"{whole} s"


class Renderer:
    def __init__(self) -> None:
        self._static = _static_files()
        self._templates = Templates(
            loader=PackageLoader("petstore.console"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        self._templates.filters.update(number=number, moment=moment, lasting=lasting, as_json=json.dumps)
        self._templates.globals.update(
            static=self._address_of,
            answer_names=ANSWER_NAMES,
            answers=RESPONSE_CLASSES,
            spans=tuple(SPANS),
            statuses=STATUSES,
        )
        for name in self._templates.list_templates():
            self._templates.get_template(name)  # now, so that nobody waits for it later

    def html(
        self, template: str, status: int = 200, headers: Mapping[str, str] | None = None, /, **context: Any
    ) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(context), status, headers)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            return PlainTextResponse("There is no such file.\n", 404)
        body, kind, version = self._static[name]
        # Under its version a file never changes.
        lasts = "max-age=31536000, immutable" if request.query_params.get("v") == version else "no-cache"
        return Response(body, media_type=kind, headers={"cache-control": lasts})

    def _address_of(self, name: str) -> str:
        return f"/static/{name}?v={self._static[name][2]}"


def _static_files() -> dict[str, tuple[bytes, str, str]]:
    """The files by their names: content, media type, and a version that changes with the content."""
    found: dict[str, tuple[bytes, str, str]] = {}

    def collect(folder: Traversable, prefix: str) -> None:
        for file in folder.iterdir():
            kind = KINDS.get("." + file.name.rpartition(".")[2])
            if file.is_dir():
                collect(file, f"{prefix}{file.name}/")
            elif kind:
                body = file.read_bytes()
                found[prefix + file.name] = (body, kind, hashlib.sha256(body).hexdigest()[:12])

    collect(resources.files("petstore.console").joinpath("static"), "")
    return found
