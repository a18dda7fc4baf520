"""What the server answers outside the base addresses: the document, the reference page, and the two probes."""

import functools
import hashlib
from collections.abc import Callable
from importlib import resources
from typing import NamedTuple

from petstore.errors import MethodNotAllowed, NotFound
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.settings import Settings
from petstore.store import Store
from petstore.web import openapi
from petstore.web.replies import JSON, Lines, Reply, line
from petstore.web.requests import Request, etag_matches

METHODS = "GET, HEAD, OPTIONS"
# The page takes everything from this server; the reference's own script writes styles into the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Site:
    def __init__(self, settings: Settings, stores: dict[Environment, Store], gate: Gate) -> None:
        self._stores = stores
        self._gate = gate
        document = openapi.document(settings.public_base)
        self._files: dict[str, Callable[[], _Static]] = {
            "/openapi.json": _static("application/json", lambda: openapi.as_json(document)),
            "/openapi.yaml": _static("application/yaml", lambda: openapi.as_yaml(document)),
            "/docs": _static("text/html; charset=utf-8", lambda: _asset("index.html")),
            "/docs/start.js": _static("text/javascript; charset=utf-8", lambda: _asset("start.js")),
            "/docs/swagger-ui-bundle.js": _static(
                "text/javascript; charset=utf-8", lambda: _asset("swagger-ui/swagger-ui-bundle.js")
            ),
            "/docs/swagger-ui.css": _static("text/css; charset=utf-8", lambda: _asset("swagger-ui/swagger-ui.css")),
        }

    async def answer(self, request: Request) -> Reply:
        """Raises NotFound, MethodNotAllowed and, from the readiness probe, Unavailable."""
        path, method = request.path, request.method
        if path not in self._files and path not in ("/healthz", "/readyz"):
            raise NotFound("There is nothing at this address.")
        if method == "OPTIONS":
            return Reply(204, line("allow", METHODS))
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"This address answers {METHODS}.", (("allow", METHODS),))
        if path == "/healthz":
            return _probe(b'{"status":"alive"}')
        if path == "/readyz":
            for store in self._stores.values():
                await store.ping()
            await self._gate.keys_version("live")
            # A node whose Redis is away still serves, if its operator wants that: then it is ready, and says so.
            return _probe(b'{"status":"ready","gate":"degraded"}' if self._gate.degraded() else b'{"status":"ready"}')
        file = self._files[path]()
        if etag_matches(request.headers("if-none-match"), file.etag):
            return Reply(304, file.headers)
        return Reply(200, file.media_type + file.headers, file.body)


def _probe(body: bytes) -> Reply:
    return Reply(200, JSON + line("cache-control", "no-store"), body)


class _Static(NamedTuple):
    media_type: str
    headers: Lines
    body: bytes
    etag: str


def _static(media_type: str, content: Callable[[], bytes]) -> Callable[[], _Static]:
    """Something that is made when first asked for and kept."""

    @functools.cache
    def made() -> _Static:
        body = content()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = (
            line("etag", etag)
            + line("cache-control", "no-cache")
            + line("content-security-policy", POLICY)
            + line("x-content-type-options", "nosniff")
        )
        return _Static(line("content-type", media_type), headers, body, etag)

    return made


def _asset(name: str) -> bytes:
    return resources.files("petstore.web").joinpath("docs", name).read_bytes()
