"""The state of a running console: its address, backends, sessions, jobs and background values."""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from petstore.audit import Action, AuditEntry
from petstore.console.background import BackgroundValue, Jobs
from petstore.console.health import Node
from petstore.console.rendering import Renderer
from petstore.console.sessions import FailureThrottle, Sessions, SignInLimits
from petstore.errors import Unavailable
from petstore.gate import Ban, Gate
from petstore.keys import ApiKey, Environment
from petstore.maintenance.bans import bans_with_keys
from petstore.operations import OperationName, deprecated_operations
from petstore.settings import Settings
from petstore.store import Store
from petstore.usage import DAY, SPANS, KeyTotal, SpanName
from petstore.web.client_address import networks

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_PORTS = {"http": 80, "https": 443}
BUSIEST = 8
DEPRECATED_DAYS = 30
DEPRECATED_MAX = 10_000  # maximum number of keys per operation in the table; the export has a higher limit


class ConsoleOrigin:
    """The console's address in the browser, and the `Host` and `Origin` values that the console accepts."""

    def __init__(self, settings: Settings) -> None:
        scheme = "https" if settings.tls_cert else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = settings.public_base or f"{scheme}://{host}:{settings.port}"
        self.secure = self.url.startswith("https://")
        # The cookie's name contains the port because browsers share cookies between ports. With the prefix __Host-,
        # browsers reject the cookie if it is not secure or if another host in the same domain sets it.
        self.cookie_name = f"{'__Host-' if self.secure else ''}petstore_console_{settings.port}"
        self.cookie: dict[str, Any] = {
            "key": self.cookie_name, "path": "/", "httponly": True, "samesite": "strict", "secure": self.secure
        }  # fmt: skip
        local = [f"{scheme}://{name}:{settings.port}" for name in (*LOOPBACK, host)]
        self.allowed_origins = {_normalized(origin) for origin in (self.url, *local)}
        self.allowed_hosts = {urlsplit(origin).netloc for origin in self.allowed_origins}


def _normalized(origin: str) -> str:
    """Returns an origin as browsers write it: in lower case, without a path and without the default port."""
    parts = urlsplit(origin.lower())
    port = f":{parts.port}" if parts.port not in (None, DEFAULT_PORTS[parts.scheme]) else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"


class ConsoleState:
    """State shared by all requests."""

    def __init__(
        self,
        stores: dict[Environment, Store],
        gate: Gate,
        clock: Callable[[], float],
        settings: Settings,
        service_url: str,
        jobs: Jobs,
    ) -> None:
        self.stores = stores
        self.gate = gate
        self.clock = clock
        self.origin = ConsoleOrigin(settings)
        self.service_url = service_url.rstrip("/")
        self.trusted_proxies = networks(settings.trusted_proxies)
        self.jobs = jobs
        self.sessions = Sessions(clock)
        self.sign_in_limits = SignInLimits(clock)
        self.failure_throttle = FailureThrottle(clock)
        self.renderer = Renderer()
        self.node = Node(settings, stores, gate)
        self.unavailable_since: float | None = None  # set while pages fail
        self.bans = {each: BackgroundValue(partial(self._bans, store)) for each, store in stores.items()}
        self.pet_counts = {each: BackgroundValue(store.pets.count) for each, store in stores.items()}
        self.busiest: dict[tuple[Environment, SpanName], BackgroundValue[list[KeyTotal]]] = {
            (each, span): BackgroundValue(partial(self._busiest, store, span))
            for each, store in stores.items()
            for span in SPANS
        }
        self.deprecated = {
            each: BackgroundValue(partial(self.deprecated_totals, each, DEPRECATED_MAX)) for each in stores
        }

    async def gate_responds(self) -> bool:
        """Returns whether the gate is responding and not using its fallback. Raises Unavailable."""
        await self.gate.keys_version("live")  # every call to the gate detects whether Redis is available
        return not self.gate.degraded()

    async def record(self, actor: str, action: Action, subject: str, detail: str = "") -> None:
        """Records a sign-in or sign-out in the audit log of the live environment. Raises Unavailable."""
        await self.stores["live"].audit.record(AuditEntry(self.clock(), actor, action, subject, detail))

    async def deprecated_totals(self, environment: Environment, limit: int) -> list[tuple[OperationName, KeyTotal]]:
        """Returns each deprecated operation's recent callers, starting with the most frequent. Raises Unavailable."""
        since = int(self.clock()) // DAY * DAY - (DEPRECATED_DAYS - 1) * DAY
        usage = self.stores[environment].usage
        return [
            (operation.name, total)
            for operation in deprecated_operations()
            for total in await usage.busiest(interval=DAY, since=since, limit=limit, operation=operation.name)
        ]

    async def _bans(self, store: Store) -> list[tuple[Ban, ApiKey]]:
        """Returns one environment's bans with their keys, starting with the ban that ends last. Raises Unavailable."""
        if not await self.gate_responds():
            raise Unavailable("the gate is not responding")
        bans = await bans_with_keys([store], self.gate, self.clock())
        return [(ban, key) for ban, key in bans if key is not None]

    async def _busiest(self, store: Store, span: SpanName) -> list[KeyTotal]:
        chosen = SPANS[span]
        return await store.usage.busiest(interval=chosen.interval, since=chosen.since(self.clock()), limit=BUSIEST)
