"""Handles requests outside the base addresses: probes, metrics, and the documents in `documents.py`."""

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from petstore.errors import MethodNotAllowed
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.settings import Settings
from petstore.store import Store
from petstore.web.client_address import client_address, is_in, networks
from petstore.web.documents import Documents
from petstore.web.replies import JSON, NO_STORE, Reply, line, unavailable
from petstore.web.requests import FIELD_PARSED_MAX, FORWARDED_PREFIX, Request
from petstore.web.routes import not_found

METHODS = "GET, HEAD, OPTIONS"
PROBES = ("/healthz", "/livez", "/readyz")
# A request with one of these headers, or with any X-Forwarded-… header, came through a proxy.
FORWARDED = ("forwarded", "via", "x-real-ip")
LOOPBACK = networks(("127.0.0.0/8", "::1"))

# A function that takes an Accept header and returns the media type and the body of the metrics response.
Scrape = Callable[[str], Awaitable[tuple[str, bytes]]]


class Site:
    def __init__(
        self,
        settings: Settings,
        stores: dict[Environment, Store],
        gate: Gate,
        clock: Callable[[], float],
        scrape: Scrape | None = None,
    ) -> None:
        self._stores = stores
        self._gate = gate
        self._clock = clock
        self._scrape = scrape
        self._looking: asyncio.Future[None] | None = None
        self.is_draining = False
        self._scrapers = networks(settings.metrics_from)
        self._trusted = networks(settings.trusted_proxies)
        # The host name in --host identifies this machine, unless it is also the host name of a public address.
        public = {urlsplit(url or "").hostname for url in (settings.public_url, settings.staging_url)}
        self._own_names = {"localhost", *({settings.host.lower()} - public)}
        self._documents = Documents(settings.base_url("live"), settings.base_url("staging"), settings)

    def is_exempt(self, request: Request) -> bool:
        """Whether a request is a probe or an authorized scrape. These are exempt from the address limit."""
        return request.path in PROBES or (request.path == "/metrics" and self._may_scrape(request))

    async def answer(self, request: Request) -> Reply:
        """Handles a request. Raises RequestError and, for the readiness probe, Unavailable."""
        path, method = request.path, request.method
        file = self._documents.find(request, self._clock())
        if file is None and not self.is_exempt(request):
            raise not_found(path)
        if method == "OPTIONS":
            return Reply(204, line("allow", METHODS))
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"This address supports only {METHODS}.", (("allow", METHODS),))
        if file is not None:
            return await file.answer(request)
        if path == "/readyz":
            if self.is_draining:
                raise unavailable(1)
            await self._ready()
            # A node that uses the fallback counts as ready, even though Redis is unavailable.
            return _probe(b'{"status":"ready","gate":"degraded"}' if self._gate.degraded() else b'{"status":"ready"}')
        if path == "/metrics" and self._scrape is not None:
            media_type, body = await self._scrape(request.fields.get("accept", "")[:FIELD_PARSED_MAX])
            return Reply(200, line("content-type", media_type) + NO_STORE, body)
        return _probe(b'{"status":"alive"}')

    async def _ready(self) -> None:
        """Checks the stores and the gate. Raises Unavailable.

        Concurrent requests share a check, so that probes cannot use up the store's connections.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        for store in self._stores.values():
            await store.database.ping()
        await self._gate.keys_version("live")

    def _may_scrape(self, request: Request) -> bool:
        """Whether the client is in a network in `--metrics-from`, or is on this machine and not behind a proxy."""
        if self._scrape is None:
            return False
        forwarded = any(name in FORWARDED or name.startswith(FORWARDED_PREFIX) for name in request.fields)
        known = "x-forwarded-for" in request.fields and is_in(request.peer, self._trusted)
        if forwarded and not known:
            return False  # the proxy is not trusted, so the client's address is unknown
        address = client_address(request.peer, request.fields.get("x-forwarded-for", ""), self._trusted)
        if is_in(address, self._scrapers):
            return True
        return not forwarded and is_in(address, LOOPBACK) and self._is_own_name(request.fields.get("host", ""))

    def _is_own_name(self, host: str) -> bool:
        """Whether the Host header names this machine. Any other name suggests a proxy that adds no headers."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return name.lower() in self._own_names or is_in(name.strip("[]"), LOOPBACK)


def _probe(body: bytes) -> Reply:
    return Reply(200, JSON + NO_STORE, body)
