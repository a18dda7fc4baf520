"""What the server answers outside the base addresses: the document, the reference page, the probes, the metrics."""

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import NamedTuple

from petstore.errors import MethodNotAllowed, NotFound
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.settings import Settings
from petstore.store import Store
from petstore.web import openapi
from petstore.web.replies import JSON, Lines, Reply, line
from petstore.web.requests import Request, client_address, etag_matches, is_in, networks

METHODS = "GET, HEAD, OPTIONS"
PATHS = ("/healthz", "/readyz", "/metrics")  # beside the files
# A request that has one of these came through a proxy, whoever is at the other end of the connection.
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
LOOPBACK = networks(("127.0.0.0/8", "::1"))
# The page takes everything from this server; the reference's own script writes styles into the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


# The metrics in the form that an Accept header asks for: the media type and the body.
Scrape = Callable[[str], Awaitable[tuple[str, bytes]]]


class Site:
    def __init__(
        self, settings: Settings, stores: dict[Environment, Store], gate: Gate, scrape: Scrape | None = None
    ) -> None:
        self._stores = stores
        self._gate = gate
        self._scrape = scrape
        self._looking: asyncio.Future[None] | None = None
        self._scrapers = networks(settings.metrics_from)
        self._trusted = networks(settings.trusted_proxies)
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
        if path not in self._files and (path not in PATHS or (path == "/metrics" and not self._may_scrape(request))):
            raise NotFound("There is nothing at this address.")
        if method == "OPTIONS":
            return Reply(204, line("allow", METHODS))
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"This address answers {METHODS}.", (("allow", METHODS),))
        if path == "/healthz":
            return _probe(b'{"status":"alive"}')
        if path == "/readyz":
            await self._ready()
            # A node whose Redis is away still serves, if its operator wants that: then it is ready, and says so.
            return _probe(b'{"status":"ready","gate":"degraded"}' if self._gate.degraded() else b'{"status":"ready"}')
        if path == "/metrics" and self._scrape is not None:
            media_type, body = await self._scrape(request.header("accept") or "")
            return Reply(200, line("content-type", media_type) + line("cache-control", "no-store"), body)
        file = self._files[path]()
        if etag_matches(request.headers("if-none-match"), file.etag):
            return Reply(304, file.headers)
        return Reply(200, file.media_type + file.headers, file.body)

    async def _ready(self) -> None:
        """One look serves all who ask meanwhile: nobody can take the store away from others by asking on and on.

        Raises Unavailable.
        """
        looking = self._looking
        if looking is None:
            looking = self._looking = asyncio.ensure_future(self._look())
            looking.add_done_callback(self._looked)
        await asyncio.shield(looking)

    async def _look(self) -> None:
        for store in self._stores.values():
            await store.ping()
        await self._gate.keys_version("live")

    def _looked(self, look: asyncio.Future[None]) -> None:
        self._looking = None
        if not look.cancelled():
            look.exception()  # whoever asked is told

    def _may_scrape(self, request: Request) -> bool:
        """Whether the metrics are for this client: from this machine and not through a proxy on it, or by setting."""
        if self._scrape is None:
            return False
        forwarded = any(request.headers(name) for name in FORWARDED)
        known = request.headers("x-forwarded-for") and is_in(request.peer, self._trusted)
        if forwarded and not known:
            return False  # someone is behind it, and nobody whom we trust says who
        address = client_address(request, self._trusted)
        if is_in(address, self._scrapers):
            return True
        return not forwarded and is_in(address, LOOPBACK) and _names_this_machine(request.header("host"))


def _names_this_machine(host: str | None) -> bool:
    """A proxy that adds no header still passes on, more often than not, the name that its client asked for."""
    if host is None:
        return False
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name == "localhost" or is_in(name.strip("[]"), LOOPBACK)


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
