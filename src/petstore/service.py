"""The composition root: the only place where settings become stores, a gate and the app before them."""

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from petstore.data_dir import PATIENCE, Hold, InUse, claimed
from petstore.errors import OperatorError, PetstoreError, Unavailable, to_install
from petstore.gate import FALLBACK_FILE, GATE_FILE, Gate, GatePolicy, open_gate
from petstore.keys import Environment
from petstore.observability.logs import event, logger
from petstore.observability.monitoring import Monitoring
from petstore.rate_limits import SECOND, BanPolicy
from petstore.server.connection import HEAD_SECONDS, WRITE_SECONDS, Connection
from petstore.server.server import HttpServer
from petstore.server.tls import tls_context
from petstore.server.workers import supervise
from petstore.settings import Settings
from petstore.store import OnCommit, Store, StorePolicy, Subject, open_stores
from petstore.web import asgi
from petstore.web.app import App

LAST_TURNS = 500
FLUSH_EVERY = 5  # seconds, and ticks


class Backends:
    """The stores of both environments and the gate, opened inside a running event loop."""

    def __init__(self, settings: Settings, *, alone: bool = False, serving: bool = False) -> None:
        """`alone`: nobody else may work on the data folder meanwhile; `serving`: no operator looks on.

        Raises OperatorError and Unavailable.
        """
        self._settings = settings
        self._folder = contextlib.ExitStack()
        recover_gate(settings)
        if alone:
            self._folder.enter_context(claimed(settings.data))
        else:
            self._folder.callback(Hold(settings.data).release)
        try:
            self.gate = open_gate_for(settings)
            self.stores = open_stores_for(settings, self.gate, serving=serving)
        except BaseException:
            self._folder.close()
            raise

    async def __aenter__(self) -> "Backends":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for store in self.stores.values():
            await store.close()
        await self.gate.close()
        self._folder.close()
        mark_gate_clean(self._settings)


class Service:
    """One worker: the app over its backends, and what it does once a second."""

    def __init__(self, settings: Settings, *, supervised: bool) -> None:
        """`supervised`: its parent process is a supervisor, without which it must not go on."""
        self._settings = settings
        self._supervised = supervised
        self._clock = clock_of(settings)
        self.every_second: list[Callable[[], None]] = []

    async def start(self) -> App:
        self._monitoring = Monitoring(self._settings)
        self._backends = Backends(self._settings, serving=True)
        self.app = App(self._settings, self._backends.stores, self._backends.gate, self._clock, self._scrape)
        self.every_second += [place.pets.bodies.sweep for place in self.app.places]
        self._flushing = asyncio.create_task(self._flush_usage())
        self._chores = asyncio.create_task(self._every_second())
        # What is loaded by now stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        # The writer's thread gets the interpreter's lock back from this one within microseconds, not within 5 ms.
        sys.setswitchinterval(0.00002)
        return self.app

    async def stop(self) -> None:
        """Finishes what was accepted: all that is queued is written, the usage too."""
        self._chores.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._chores
        await self._flushing
        self.app.settle(math.inf)
        await self._flush_usage()
        await self._backends.close()
        self._monitoring.close()

    async def _scrape(self, accept: str) -> tuple[str, bytes]:
        self.app.settle(time.perf_counter())
        return await self._monitoring.scrape(accept)

    async def _every_second(self) -> None:
        parent = os.getppid()
        tick = 0
        while True:
            due = time.perf_counter() + 1
            await asyncio.sleep(1)
            tick += 1
            if self._supervised and os.getppid() != parent:  # it was killed: a worker would hold the port for ever
                event(logging.ERROR, "supervisor gone")
                os._exit(1)
            for chore in self.every_second:
                chore()
            now = time.perf_counter()
            self.app.settle(now)
            self._monitoring.tick(now - due)
            try:
                await self._backends.gate.sweep(self._clock())
            except Exception as error:  # the other chores go on
                event(logging.ERROR, "sweep failed", cause=repr(error))
            if tick % FLUSH_EVERY == 0 and self._flushing.done():
                self._flushing = asyncio.create_task(self._flush_usage())

    async def _flush_usage(self) -> None:
        for place in self.app.places:
            with contextlib.suppress(Unavailable):  # kept for the next time
                await place.traffic.flush(self._clock())


def prepare(settings: Settings) -> None:
    """Make the data folder, or finish a restore that was cut short. Raises OperatorError when it cannot be used."""
    Hold(settings.data).release()


def recover_gate(settings: Settings, *, thoroughly: bool = False) -> None:
    """Set a gate file that is not to be is_clean aside before anyone opens it; `thoroughly`: read it, too.

    Raises OperatorError when it is somebody else's.
    """
    from petstore.gate.recovery import is_clean, recover

    path = _gate_file(settings)
    if is_clean(path) and not thoroughly:
        return
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with claimed(settings.data):
                aside = recover(path)
            break
        except InUse:
            if is_clean(path, in_use=True):
                return  # by someone who has looked at it, and is using it
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    if aside is not None:
        event(logging.ERROR, "gate file damaged", set_aside=str(aside), effect="counters start anew")


def mark_gate_clean(settings: Settings) -> None:
    """To be called by everyone who has used the gate's file: the last one notes that all of it is on disk."""
    from petstore.gate.recovery import mark_clean

    with contextlib.suppress(InUse), claimed(settings.data):
        mark_clean(_gate_file(settings))


def _gate_file(settings: Settings) -> Path:
    """The gate, or what takes its place while Redis is away."""
    return settings.data / (GATE_FILE if settings.gate is None else FALLBACK_FILE)


def clock_of(settings: Settings) -> Callable[[], float]:
    """The machine's clock or, for tests, the machine's clock moved by the seconds in a file."""
    file = settings.clock_file
    if file is None:
        return time.time
    return lambda: time.time() + _seconds_in(file)


def _seconds_in(file: Path) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return 0.0


def open_gate_for(settings: Settings) -> Gate:
    """Raises OperatorError."""
    bans = BanPolicy(settings.ban_seconds * SECOND, settings.ban_ceiling * SECOND, settings.ban_strikes)
    given_clock = settings.clock_file is not None
    policy = GatePolicy(bans, settings.address_per_minute, settings.gate_outage, given_clock)
    return open_gate(settings.gate, settings.data, policy)


def open_stores_for(settings: Settings, gate: Gate | None, *, serving: bool = False) -> dict[Environment, Store]:
    """Stores that raise the gate's versions with every commit. Raises OperatorError."""

    def on_commit(environment: Environment) -> OnCommit:
        async def raise_version(subject: Subject) -> None:
            if gate is not None:
                await gate.raise_version(environment, subject)

        return raise_version

    policy = StorePolicy(settings.postgres_pool, settings.pgbouncer, serving)
    return open_stores(settings.store, settings.data, policy, on_commit)


def serve(settings: Settings) -> None:
    """Run the service until it is told to stop. Raises OperatorError."""
    hold = Hold(settings.data)  # by the main process too: between two workers the folder is not free
    supervise(settings.workers, partial(_work, settings))
    hold.release()
    mark_gate_clean(settings)


def _work(settings: Settings) -> None:
    """One worker process, from start to end."""
    import uvloop

    uvloop.run(_serve_http(settings))


async def _serve_http(settings: Settings) -> None:
    service = Service(settings, supervised=True)
    server = HttpServer(await service.start())
    service.every_second.append(server.tick)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = await loop.create_server(
        lambda: Connection(server),
        settings.host,
        settings.port,
        backlog=4096,
        reuse_port=True,  # the kernel spreads the connections over the workers
        ssl=(tls := tls_context(settings.tls_cert, settings.tls_key)),
        ssl_handshake_timeout=HEAD_SECONDS if tls else None,
        ssl_shutdown_timeout=WRITE_SECONDS if tls else None,
    )
    await stop.wait()
    for _ in range(LAST_TURNS):  # who is connected already would be reset; a turn of the loop accepts one
        await asyncio.sleep(0)
    listener.close()
    await server.drain()
    await service.stop()


def serve_console(settings: Settings, greet: Callable[[str], None]) -> None:
    """Run the console until it is told to stop; `greet` is given the address to sign in at.

    Raises OperatorError when the packages for it are missing.
    """
    try:
        import python_multipart  # noqa: F401  # Starlette wants it when the first form comes, which is too late
        import uvicorn

        from petstore.console.app import open_console
    except ImportError as error:
        raise OperatorError(f"the console needs the package {error.name}: {to_install('console')}") from None

    async def run() -> None:
        async with (
            Backends(settings) as backends,
            open_console(settings, backends.stores, backends.gate, clock_of(settings)) as console,
        ):
            server = uvicorn.Server(uvicorn.Config(console.app, **_uvicorn_options(settings)))
            # Uvicorn's own handling of signals would end the process by the signal instead of with code 0.
            server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]  # see above
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
            greet(console.sign_in_url)
            await server.serve()

    asyncio.run(run())


def _uvicorn_options(settings: Settings) -> dict[str, Any]:
    return {
        "host": settings.host,
        "port": settings.port,
        "http": "h11",  # it ends a head at 64 KiB; httptools takes all that anyone sends, before they are known
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key,
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "timeout_graceful_shutdown": 2,
    }


class AsgiService:
    """The same service for any ASGI server that speaks the lifespan protocol."""

    def __init__(self, settings: Settings) -> None:
        self._service = Service(settings, supervised=False)  # whoever started the server may go: a shell, say

    async def __call__(self, scope: MutableMapping[str, Any], receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})  # a refusal: there is nothing of the kind here
        elif scope["type"] == "http":
            await asgi.respond(self._service.app, scope, receive, send)
        elif scope["type"] == "lifespan":
            await receive()
            try:
                await self._service.start()
            except Exception as error:  # a server that is not told takes it for an app without a lifespan, and serves
                if not isinstance(error, PetstoreError):
                    logger.exception("worker failed")
                await send({"type": "lifespan.startup.failed", "message": f"petstore: {error}"})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._service.stop()
            await send({"type": "lifespan.shutdown.complete"})
