"""The composition root: the only place where settings become stores, a gate and the app before them."""

import asyncio
import contextlib
import gc
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from petstore.errors import Unavailable
from petstore.folder import PATIENCE, Hold, InUse, claimed
from petstore.gate import GATE_FILE, OUTAGE_FILE, Gate, GatePolicy, open_gate
from petstore.keys import Environment
from petstore.logs import event
from petstore.monitoring import Monitoring
from petstore.settings import Settings
from petstore.store import OnCommit, Store, StorePolicy, Subject, open_stores
from petstore.web.app import App
from petstore.windows import SECOND, BanPolicy

FLUSH_EVERY = 5  # seconds, and ticks


class Backends:
    """The stores of both environments and the gate, opened inside a running event loop."""

    def __init__(self, settings: Settings, *, alone: bool = False, serving: bool = False) -> None:
        """`alone`: nobody else may work on the data folder meanwhile; `serving`: no operator looks on.

        Raises OperatorError and Unavailable.
        """
        self._settings = settings
        self._folder = contextlib.ExitStack()
        mend_gate(settings)
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
        rest_gate(self._settings)


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


def mend_gate(settings: Settings, *, thoroughly: bool = False) -> None:
    """Set a gate file that is not to be believed aside before anyone opens it; `thoroughly`: read it, too.

    Raises OperatorError when it is somebody else's.
    """
    from petstore.gate.trust import believed, set_aside_if_damaged

    path = _gate_file(settings)
    if believed(path) and not thoroughly:
        return
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with claimed(settings.data):
                aside = set_aside_if_damaged(path)
            break
        except InUse:
            if believed(path, in_use=True):
                return  # by someone who has looked at it, and is using it
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    if aside is not None:
        event(logging.ERROR, "gate file damaged", set_aside=str(aside), effect="counters start anew")


def rest_gate(settings: Settings) -> None:
    """To be called by everyone who has used the gate's file: the last one notes that all of it is on disk."""
    from petstore.gate.trust import mark_synced

    with contextlib.suppress(InUse), claimed(settings.data):
        mark_synced(_gate_file(settings))


def _gate_file(settings: Settings) -> Path:
    """The gate, or what takes its place while Redis is away."""
    return settings.data / (GATE_FILE if settings.gate is None else OUTAGE_FILE)


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
