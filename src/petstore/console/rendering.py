"""Renders templates and serves static files. Also defines the template filters."""

import datetime
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from petstore.formats.pet_texts import IMPORTED
from petstore.pets import STATUSES
from petstore.reports.charts import RESPONSE_CLASSES, ResponseClass
from petstore.usage import SPANS
from petstore.wording import when

STATIC = Path(__file__).with_name("static")
MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

SECTIONS = ("overview", "animals", "keys", "bans", "bills", "deprecated", "audit", "operators", "health")

# Column titles and CSS classes of the animals table, in the same order as the cells in pets/row.html.
PET_TITLES = {"Id": "number", "Name": "", "Category": "number", "Status": ""}

# Labels for response classes in plots and tables.
CLASS_NAMES: dict[ResponseClass, str] = {
    "ok": "OK",
    "client_error": "client errors (4xx)",
    "unauthorized": "no valid key (401)",
    "refused": "over the limit (429)",
    "banned": "banned (429)",
    "server_error": "server errors (5xx)",
}


def timestamp(at: float | None, style: Literal["relative", "absolute", "day"] = "relative") -> str | Markup:
    """Formats a time in UTC.

    In the browser, console.js converts it to a relative time or to local time. Dates without a time stay in UTC.
    """
    if at is None:
        return "never"
    utc = datetime.datetime.fromtimestamp(at, datetime.UTC)
    if style == "day":
        return utc.strftime("%Y-%m-%d")
    shown = utc.strftime("%Y-%m-%d %H:%M:%S" if style == "relative" else "%Y-%m-%d %H:%M")
    iso = utc.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Markup('<time datetime="{}" data-style="{}">{} UTC</time>').format(iso, style, shown)


def duration(seconds: float) -> str:
    """Formats a duration in at most two units, such as 1 d 3 h."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    days, hours = divmod(minutes // 60, 24)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{minutes} min" if minutes else f"{rest} s"


def at_most(milliseconds: float) -> str:
    """Formats a latency percentile, for which the histogram provides only an upper bound."""
    return "more than 10 s" if milliseconds == float("inf") else f"at most {milliseconds:g} ms"


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
        self._templates.filters.update(
            number="{:,}".format, timestamp=timestamp, duration=duration, at_most=at_most, when=when, as_json=json.dumps
        )
        self._templates.globals.update(
            static=self._static_url,
            class_names=CLASS_NAMES,
            all_classes=RESPONSE_CLASSES,
            key_classes=[each for each in RESPONSE_CLASSES if each != "unauthorized"],
            spans=tuple(SPANS),
            statuses=STATUSES,
            pet_titles=PET_TITLES,
            csv_columns=IMPORTED,
            sections=SECTIONS,
        )
        for name in self._templates.list_templates():
            self._templates.get_template(name)  # compile all templates on startup, so that no request has to wait

    def html(
        self, template: str, status: int = 200, headers: Mapping[str, str] | None = None, /, **context: Any
    ) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(context), status, headers)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            return PlainTextResponse("No such file.\n", 404)
        body, media_type, version = self._static[name]
        # The content of a versioned URL never changes, so browsers can cache it.
        caching = "max-age=31536000, immutable" if request.query_params.get("v") == version else "no-cache"
        return Response(body, media_type=media_type, headers={"cache-control": caching})

    def _static_url(self, name: str) -> str:
        return f"/static/{name}?v={self._static[name][2]}"


def _static_files() -> dict[str, tuple[bytes, str, str]]:
    """Maps each file's name to its content, media type and version, which is a hash of the content."""
    found: dict[str, tuple[bytes, str, str]] = {}
    for file in STATIC.rglob("*"):
        if file.suffix in MEDIA_TYPES:
            body = file.read_bytes()
            version = hashlib.sha256(body).hexdigest()[:12]
            found[file.relative_to(STATIC).as_posix()] = (body, MEDIA_TYPES[file.suffix], version)
    return found
