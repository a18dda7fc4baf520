"""The composition root: creates the backends, the application and the server. Runs the main process and the console."""

import asyncio
import contextlib
import gc
import math
import resource
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from petstore import __version__
from petstore.backends import Backends, clock_of, mark_gate_clean, open_gate_for, without_fallback
from petstore.data_dir import LAST_BACKUP, METRICS, shared_lock
from petstore.errors import MissingPackage, OperatorError, Unavailable
from petstore.gate import GATE_FILE, bucket_of
from petstore.keys import ENVIRONMENTS, Environment
from petstore.maintenance.certificate import served_expiry
from petstore.observability import metrics
from petstore.observability.logs import bugs_logged
from petstore.observability.monitoring import Monitoring
from petstore.server.asgi_bridge import AsgiBridge
from petstore.server.http_server import Application, HttpServer
from petstore.server.serving import Ending, serve_connections
from petstore.server.sockets import open_sockets, worker_sockets
from petstore.server.tls import tls_context
from petstore.server.workers import Supervisor
from petstore.settings import Settings, without_password
from petstore.store import Store
from petstore.store.schema import COUNTERS
from petstore.web.app import App
from petstore.web.client_address import is_in, networks

FLUSH_EVERY = 5  # seconds between writes of usage to the store
ERRORS_EVERY = 2  # seconds between writes of recent errors; operators should see them within five seconds
EXPIRING_SECONDS = 14 * 86_400.0  # keys that expire within this time count as expiring soon
COLLECT_ALL_EVERY = 300  # seconds between collections of every key's admissions; a collection takes 20 µs per key
DESCRIPTORS_MAX = 65_536
DESCRIPTORS_RESERVED = 128  # file descriptors reserved for files, backends and listening sockets


class Service:
    """One worker: the app, its backends, and the periodic tasks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clock = clock_of(settings)

    async def start(self, running: Settings | None = None) -> App:
        """Opens the backends and starts the periodic tasks. Waits until the schema is up to date.

        `running` are the settings of workers that already serve requests, if there are any. The store must respond
        unless they use it too. The gate must respond only if they use another one. Raises PetstoreError if a backend
        does not respond or cannot be used, or if the certificate is not valid.
        """
        self.tls = tls_context(self._settings.tls_cert, self._settings.tls_key)
        self._monitoring = Monitoring(self._settings.data / METRICS, partial(measure_node, self._settings))
        if self.tls is not None and self._settings.tls_cert is not None:
            with contextlib.suppress(OperatorError):  # the file was replaced at this moment
                metrics.CERTIFICATE_EXPIRY.set(served_expiry(self.tls, self._settings.tls_cert, expired_too=True))
        if running is not None and self._settings.gate != running.gate:
            await _check_gate(self._settings)
        self._backends = Backends(self._settings, serving=True)
        required = running is None or self._settings.store != running.store
        await _wait_for_stores(self._backends.stores, self._settings, required=required)
        self.app = App(self._settings, self._backends.stores, self._backends.gate, self._clock, self._scrape)
        # The first flush covers all keys, because workers that were killed may have left admissions unwritten.
        self._flushing = asyncio.create_task(self._flush_usage(of_all=True))
        self._flushing_errors = asyncio.create_task(self._flush_errors())
        self._housekeeping = asyncio.create_task(self._run_housekeeping())
        # Everything loaded so far stays in memory, so the garbage collector does not need to scan it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        # The writer thread gets the interpreter lock after 20 µs instead of 5 ms. This makes create requests 7% faster.
        sys.setswitchinterval(0.00002)
        return self.app

    async def stop(self) -> None:
        """Stops the worker after finishing all queued writes and writing its usage."""
        self._housekeeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._housekeeping
        await self._flushing
        await self._flushing_errors
        self.app.publish(math.inf)
        await self._flush_usage(of_all=True)
        await self._flush_errors()
        await self._backends.close()
        await self._monitoring.close()

    async def _scrape(self, accept: str) -> tuple[str, bytes]:
        self.app.publish(time.perf_counter())
        return await self._monitoring.scrape(accept)

    async def _run_housekeeping(self) -> None:
        """Runs the periodic tasks once a second. A bug in one task is logged and does not stop the others."""
        tick = 0
        while True:
            due = time.perf_counter() + 1
            await asyncio.sleep(1)
            tick += 1
            now = time.perf_counter()
            with bugs_logged():
                self.app.publish(now)
            with bugs_logged():
                self._monitoring.tick(now - due)
            with bugs_logged(), contextlib.suppress(Unavailable):
                await self._backends.gate.sweep(self._clock())
            if tick % FLUSH_EVERY == 0 and self._flushing.done():
                self._flushing = asyncio.create_task(self._flush_usage(of_all=tick % COLLECT_ALL_EVERY == 0))
            if tick % ERRORS_EVERY == 0 and self._flushing_errors.done():
                self._flushing_errors = asyncio.create_task(self._flush_errors())

    async def _flush_usage(self, *, of_all: bool) -> None:
        """Writes the usage to the store.

        All measures are written with the same timestamp, so that charts show errors and admissions in the same bar.
        """
        now = self._clock()
        with bugs_logged(), contextlib.suppress(Unavailable):
            # Keep one connection to PostgreSQL open, so that `petstore copy` can see that this node is running.
            await self._backends.stores["live"].database.ping()
        seen = None if of_all else [key for counters in self.app.counters for key in counters.keys_seen]
        with bugs_logged(), contextlib.suppress(Unavailable):  # if this fails, the gate keeps the totals
            await self._backends.collect_admissions(now, seen)
        for counters in self.app.counters:
            with bugs_logged(), contextlib.suppress(Unavailable):  # if this fails, the next flush writes the usage
                await counters.flush(now)
        if of_all:
            await self._count_expiring_keys(now)

    async def _count_expiring_keys(self, now: float) -> None:
        for environment, store in self._backends.stores.items():
            with bugs_logged(), contextlib.suppress(Unavailable):
                metrics.KEYS_EXPIRING.set(await store.keys.expiring(now, now + EXPIRING_SECONDS), environment)

    async def _flush_errors(self) -> None:
        for counters in self.app.counters:
            with bugs_logged(), contextlib.suppress(Unavailable):  # if this fails, the next flush writes the errors
                await counters.flush_errors()


def measure_node(settings: Settings) -> None:
    """Sets the gauges that describe the node rather than a worker."""
    embedded_store, embedded_gate = settings.store is None, settings.gate is None
    backends = "sqlite" if embedded_store else "postgresql", "lmdb" if embedded_gate else "redis"
    metrics.BUILD_INFO.set(1, __version__, *backends)
    metrics.FREE_BYTES.set(shutil.disk_usage(settings.data).free)
    if embedded_store:  # with PostgreSQL, any LAST_BACKUP file was left behind by an earlier SQLite store
        with contextlib.suppress(FileNotFoundError):
            metrics.LAST_BACKUP.set((settings.data / LAST_BACKUP).stat().st_mtime)
    for environment in ENVIRONMENTS if embedded_store else ():
        for gauge, name in ((metrics.STORE_BYTES, f"{environment}.db"), (metrics.WAL_BYTES, f"{environment}.db-wal")):
            with contextlib.suppress(FileNotFoundError):
                gauge.set((settings.data / name).stat().st_size, environment)
    if embedded_gate:
        with contextlib.suppress(FileNotFoundError):
            metrics.GATE_BYTES.set((settings.data / GATE_FILE).stat().st_size)


async def _wait_for_stores(stores: Mapping[Environment, Store], settings: Settings, *, required: bool) -> None:
    """Waits until the schema is up to date. There is no timeout, because an interrupted migration has to start over.

    Raises OperatorError if a store cannot be used, and Unavailable or OperatorError if a required store does not
    respond.
    """
    try:
        for store in stores.values():
            await store.transfer.rows(COUNTERS, None, 1)  # this query has no timeout, unlike those that serve requests
            await store.database.ping()
    except Unavailable as error:
        if required and settings.store is not None:
            raise OperatorError(f"--store {without_password(settings.store)} does not respond: {error}") from error
        if required:
            raise


async def _check_gate(settings: Settings) -> None:
    """Raises OperatorError if the Redis that the settings name does not respond."""
    if settings.gate is None:
        return
    gate = open_gate_for(without_fallback(settings))
    try:
        await gate.keys_version("live")
    except Unavailable as error:
        raise OperatorError(f"--gate {without_password(settings.gate)} does not respond: {error}") from error
    finally:
        await gate.close()


# Serving


def serve(settings: Settings, reread: Callable[[], Settings], greet: Callable[[], Awaitable[None]]) -> None:
    """Runs the main process until a signal stops it. Raises OperatorError if the workers cannot start.

    Calls `greet` when the workers have started. A reload calls `reread`, which rereads the files that contain URLs and
    raises OperatorError if they are not valid.
    """
    sockets = worker_sockets(settings.host, settings.port, settings.workers)
    supervisor = Supervisor(sockets, settings.workers, settings, reread)
    try:
        with shared_lock(settings.data):  # keep the lock even when no worker is running
            code = asyncio.run(supervisor.run(greet))
    finally:
        mark_gate_clean(settings)
    if code:
        sys.exit(code)


def http_server(settings: Settings, app: Application, fields: frozenset[str] | None) -> HttpServer:
    """Returns a server whose limits depend on the settings and on the number of available file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, DESCRIPTORS_MAX) if hard > 0 else DESCRIPTORS_MAX
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    trusted = networks(settings.trusted_proxies)
    room = max(soft, wanted) - DESCRIPTORS_RESERVED
    return HttpServer(
        app,
        fields,
        connections_max=room,
        per_address_max=min(settings.connections_per_address, max(1, room // 2)),
        is_exempt=lambda address: not address or is_in(address, trusted),  # a Unix socket has no address
        group_of=bucket_of,
    )


def check_console_packages() -> None:
    """Raises MissingPackage if a package that the console requires is not installed."""
    try:
        import python_multipart  # noqa: F401  # Starlette imports this only when the first form arrives

        import petstore.console.app  # noqa: F401  # fails if any other required package is missing
    except ImportError as error:
        raise MissingPackage("the console", error.name, "console") from None


def serve_console(settings: Settings, service_url: str, greet: Callable[[str], None]) -> None:
    """Runs the console until a signal stops it. Calls `greet` with the sign-in URL. Raises OperatorError.

    `service_url` is the service's address, for links in the console.
    """
    import uvloop

    from petstore.console.app import open_console

    tls = tls_context(settings.tls_cert, settings.tls_key)
    (sockets,) = open_sockets(settings.host, settings.port, 1)

    async def run() -> None:
        async with (
            Backends(settings) as backends,
            open_console(settings, service_url, backends.stores, backends.gate, clock_of(settings)) as console,
        ):
            scheme = "https" if tls else "http"
            app = AsgiBridge(console.app, scheme=scheme, host=settings.host, port=settings.port)
            server, ending = http_server(settings, app, None), Ending()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, ending.stop.set)
            await serve_connections(server, sockets, tls, lambda: greet(console.sign_in_url), ending)

    try:
        uvloop.run(run())
    finally:
        for each in sockets:
            each.close()
