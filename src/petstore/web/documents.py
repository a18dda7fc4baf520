"""The documents for people and programs: the landing page, the reference page with its assets, OpenAPI.

They never change while the service runs: made and compressed once, and cached by clients.
"""

import gzip
import hashlib
import html
from importlib import resources
from string import Template

import msgspec

from petstore import __version__
from petstore.web import openapi
from petstore.web.pets import SUNSET
from petstore.web.replies import Lines, Reply, line
from petstore.web.requests import Request, etag_matches

HTML, JSON = "text/html; charset=utf-8", "application/json"
MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
OWN_ASSETS = (
    "base.css", "landing.css", "landing.js", "paw.svg", "parts.js", "reference.css", "reference.js", "samples.js",
)  # fmt: skip
SWAGGER_UI = "swagger-ui-bundle.js"

REVALIDATE = "no-cache"  # keep it, and ask before each use whether it is still the same
IMMUTABLE = "public, max-age=31536000, immutable"  # for an address that has the version of its content in it
# A page takes everything from this server.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Document:
    def __init__(
        self, media_type: str, content: bytes, *, cache: str = REVALIDATE, vary: str = "Accept-Encoding"
    ) -> None:
        self._media_type = line("content-type", media_type)
        self._plain, self._compressed = content, gzip.compress(content, 9, mtime=0)
        self._digest = hashlib.sha256(content).hexdigest()[:32]
        self._headers: Lines = (
            line("cache-control", cache)
            + line("vary", vary)
            + line("content-security-policy", POLICY)
            + line("x-content-type-options", "nosniff")
        )

    def answer(self, request: Request) -> Reply:
        compressed = quality(request.fields.get("accept-encoding", ""), "gzip", "*") > 0
        etag = f'"{self._digest}-gzip"' if compressed else f'"{self._digest}"'
        headers = line("etag", etag) + self._headers
        if etag_matches(request.fields.get("if-none-match", ""), etag):
            return Reply(304, headers)
        if compressed:
            return Reply(200, headers + self._media_type + line("content-encoding", "gzip"), self._compressed)
        return Reply(200, headers + self._media_type, self._plain)


class Documents:
    """For the two base addresses as clients see them, each a path or a URL that ends in the version segment."""

    def __init__(self, live: str, staging: str) -> None:
        """Takes 0.2 s."""
        folder = resources.files("petstore.web").joinpath("static")
        own = {name: folder.joinpath(name).read_bytes() for name in OWN_ASSETS}
        bundle = folder.joinpath("swagger-ui", SWAGGER_UI).read_bytes()
        # Changes with any asset, and stands in the address of each: a browser may keep what it has for ever.
        version = hashlib.sha256(b"".join(own.values()) + bundle).hexdigest()[:16]
        assets = f"docs/assets/{version}"
        values = {"assets": assets, "version": __version__, "live": html.escape(live), "staging": html.escape(staging)}
        landing, reference = (
            Template(folder.joinpath(name).read_text()).substitute(values).encode()
            for name in ("landing.html", "reference.html")
        )
        self._landing = Document(HTML, landing, vary="Accept, Accept-Encoding")
        self._links = Document(JSON, _links(live, staging), vary="Accept, Accept-Encoding")
        self._others = {"/docs": Document(HTML, reference)}
        for name, content in {**own, SWAGGER_UI: bundle}.items():
            media_type = MEDIA_TYPES[name.rpartition(".")[2]]
            self._others[f"/{assets}/{name}"] = Document(media_type, content, cache=IMMUTABLE)
        # Each before and after the day on which an operation leaves the document.
        built = [openapi.document(live, staging, now) for now in (0.0, SUNSET)]
        self._openapi = {
            "/openapi.json": [Document(JSON, openapi.as_json(each)) for each in built],
            "/openapi.yaml": [Document("application/yaml", openapi.as_yaml(each)) for each in built],
        }

    def find(self, request: Request, now: float) -> Document | None:
        path = request.path
        if path == "/":
            return self._landing if _wants_html(request) else self._links
        if path in self._openapi:
            return self._openapi[path][now >= SUNSET]
        return self._others.get(path)


def _wants_html(request: Request) -> bool:
    """Whether HTML is named: a browser does. A program that takes anything gets JSON."""
    accept = request.fields.get("accept", "")
    wanted = quality(accept, "text/html", "text/*")
    return wanted > 0 and wanted >= quality(accept, "application/json", "application/*")


def _links(live: str, staging: str) -> bytes:
    root = live.removesuffix("/v1")
    links = {
        "name": "Petstore",
        "version": __version__,
        "environments": {"live": live, "staging": staging},
        "reference": f"{root}/docs",
        "document": f"{root}/openapi.json",
        "guide": f"{root}/docs#guide",
    }
    return msgspec.json.format(msgspec.json.encode(links), indent=2)


def quality(field: str, *names: str) -> float:
    """How much `Accept` or `Accept-Encoding` wants the first of `names` that it mentions, from 0 to 1."""
    wanted: dict[str, float] = {}
    for entry in field.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            wanted[name] = float(weight)
        except ValueError:
            wanted[name] = 0.0
    return next((wanted[name] for name in names if name in wanted), 0.0)
