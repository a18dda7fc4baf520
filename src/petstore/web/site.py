"""What the server answers outside the base addresses: the document, the reference page, and the two probes."""

import hashlib
from collections.abc import Callable, Iterable
from importlib import resources

from petstore.errors import MethodNotAllowed, NotFound
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.settings import Settings
from petstore.store import Store
from petstore.web import openapi
from petstore.web.replies import JSON, Headers, Reply
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
        self._files: dict[str, Callable[[], Reply]] = {
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
            return Reply(204, [("allow", METHODS)])
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"This address answers {METHODS}.", (("allow", METHODS),))
        if path == "/healthz":
            return _probe(b'{"status":"alive"}')
        if path == "/readyz":
            for store in self._stores.values():
                await store.ping()
            await self._gate.keys_version("live")
            return _probe(b'{"status":"ready"}')
        return _unless_known(self._files[path](), request.headers("if-none-match"))


def _probe(body: bytes) -> Reply:
    return Reply(200, [JSON, ("cache-control", "no-store")], body)


def _static(media_type: str, content: Callable[[], bytes]) -> Callable[[], Reply]:
    """A reply that is made when first asked for and kept."""
    made: list[tuple[Headers, bytes]] = []

    def reply() -> Reply:
        if not made:
            body = content()
            headers = [
                ("content-type", media_type),
                ("etag", f'"{hashlib.sha256(body).hexdigest()[:32]}"'),
                ("cache-control", "no-cache"),
                ("content-security-policy", POLICY),
                ("x-content-type-options", "nosniff"),
            ]
            made.append((headers, body))
        return Reply(200, *made[0])

    return reply


def _unless_known(reply: Reply, conditions: Iterable[str]) -> Reply:
    if etag_matches(conditions, dict(reply.headers)["etag"]):
        return Reply(304, reply.headers[1:])
    return reply


def _asset(name: str) -> bytes:
    return resources.files("petstore.web").joinpath("docs", name).read_bytes()
