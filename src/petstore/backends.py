"""Opens both environments' stores and the gate, and locks the data directory while they are open."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import msgspec

from petstore.changes import Change
from petstore.data_dir import LOCK_TIMEOUT, METRICS, InUse, exclusive_lock, secure, shared_lock
from petstore.gate import Gate, GatePolicy, gate_file, open_gate
from petstore.gate.recovery import is_clean, mark_clean, recover
from petstore.keys import ENVIRONMENTS, Environment
from petstore.observability import multiprocess
from petstore.rate_limits import SECOND, BanPolicy
from petstore.settings import Settings
from petstore.store import Store, StorePolicy, close_stores, open_stores
from petstore.store.database import Bounds

# The number of admission totals to add per transaction. Transactions must be short, because create requests wait for
# them.
TOTALS_MAX = 250


class Backends:
    """Both environments' stores and the gate. Must be created in a running event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        alone: bool = False,
        serving: bool = False,
        migrate: bool = True,
        bounds: Bounds | None = None,
    ) -> None:
        """Opens the backends. Raises OperatorError or Unavailable on failure.

        If `alone` is true, takes the exclusive lock, so that no other process can use the data directory. `serving` is
        true for the service and false for operators' commands. If `migrate` is false, no store is created or migrated.
        If the store is in PostgreSQL and the gate is in Redis, operators' commands do not use the data directory. The
        service still needs it, for example for the fallback's gate file.
        """
        self._settings = settings
        self._locked = serving or settings.store is None or settings.gate is None
        self.clock = clock_of(settings)
        with contextlib.ExitStack() as lock:
            if self._locked:
                check_recognised(settings)
                recover_gate(settings)
                lock.enter_context(exclusive_lock(settings.data) if alone else shared_lock(settings.data))
            has_gate_file = gate_file(settings.gate, settings.data).exists()
            if not self._locked or not (migrate or has_gate_file):
                # This command must not create files in the data directory, so it uses an empty, temporary gate file.
                elsewhere = Path(lock.enter_context(tempfile.TemporaryDirectory(prefix="petstore-")))
                self.gate = open_gate_for(msgspec.structs.replace(settings, data=elsewhere))
            else:
                self.gate = open_gate_for(settings)
            try:
                self.stores = open_stores_for(settings, self.gate, serving=serving, migrate=migrate, bounds=bounds)
            except BaseException:
                _close_soon(self.gate)
                raise
            self._lock = lock.pop_all()

    async def collect_admissions(self, at: float, key_ids: Sequence[str] | None = None) -> None:
        """Adds the gate's admission counts to the usage of these keys, or of all keys if `key_ids` is None.

        `at` is the time to which the usage is attributed. Any process can call this at any time, because each admission
        is added only once. Raises Unavailable if the gate or a store is unavailable. In that case, a later call adds
        the missing admissions.
        """
        async for totals in self.gate.admissions(key_ids):
            for environment, store in self.stores.items():
                own = [total for total in totals if total.environment == environment]
                for start in range(0, len(own), TOTALS_MAX):
                    await store.usage.add_admissions(own[start : start + TOTALS_MAX], int(at), late=key_ids is None)

    async def __aenter__(self) -> "Backends":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        try:
            await close_stores(self.stores.values())
        finally:
            await self.gate.close()
            self._lock.close()
            if self._locked:
                mark_gate_clean(self._settings)


def _close_soon(gate: Gate) -> None:
    """Closes the gate in the background. Called if the stores cannot be opened."""
    closing = asyncio.get_running_loop().create_task(gate.close())
    closing.add_done_callback(lambda task: task.cancelled() or task.exception())


def check_recognised(settings: Settings) -> None:
    """Raises OperatorError if this user or this version cannot use the data directory. Creates only the directory."""
    secure(settings.data)
    if settings.store is None:
        from petstore.store.sqlite import migrations

        for environment in ENVIRONMENTS:
            migrations.check_recognised(settings.data / f"{environment}.db")


def prepare(settings: Settings) -> None:
    """Creates the data directory if necessary, finishes an interrupted restore, and deletes old metrics.

    Raises OperatorError if this version or this user cannot use the data directory.
    """
    check_recognised(settings)
    with shared_lock(settings.data):
        pass
    with contextlib.suppress(OSError):  # the workers will log an error if the directory is not writable
        multiprocess.remove_old_numbers(settings.data / METRICS)


def recover_gate(settings: Settings, *, thoroughly: bool = False) -> None:
    """Renames the gate file if it is damaged. If `thoroughly` is true, reads the whole file even if it is marked clean.

    Raises OperatorError if this version cannot use the file.
    """
    path = gate_file(settings.gate, settings.data)
    if is_clean(path) and not thoroughly:
        return
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            with exclusive_lock(settings.data):
                recover(path)
            return
        except InUse:
            if is_clean(path, in_use=True):
                return  # the process that is using the file has already checked it
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def mark_gate_clean(settings: Settings) -> None:
    """Marks the gate file as synced, unless another process is using it.

    Every process that has used the file must call this before it exits.
    """
    with contextlib.suppress(InUse), exclusive_lock(settings.data):
        mark_clean(gate_file(settings.gate, settings.data))


def open_gate_for(settings: Settings) -> Gate:
    """Opens the gate that the settings specify. Raises the same errors as `open_gate`."""
    bans = BanPolicy(settings.ban_seconds * SECOND, settings.ban_ceiling * SECOND, settings.ban_strikes)
    given_clock = settings.clock_file is not None
    policy = GatePolicy(bans, settings.address_per_minute, settings.gate_outage, given_clock)
    return open_gate(settings.gate, settings.data, policy)


def without_fallback(settings: Settings) -> Settings:
    """Returns the settings without the gate's fallback, which would hide a Redis outage and create a file."""
    return msgspec.structs.replace(settings, gate_outage="refuse")


def open_stores_for(
    settings: Settings,
    gate: Gate | None,
    *,
    serving: bool = False,
    migrate: bool = True,
    bounds: Bounds | None = None,
) -> dict[Environment, Store]:
    """Opens the stores, which announce changes to the gate after each commit. Raises OperatorError on failure."""

    async def announce(environment: Environment, changes: Collection[Change]) -> None:
        if gate is not None:
            await gate.announce(environment, changes)

    bounds = (bounds or Bounds())._replace(usage_days=settings.usage_days)
    policy = StorePolicy(settings.postgres_pool, settings.pgbouncer, serving, migrate, bounds)
    return open_stores(settings.store, settings.data, policy, lambda environment: partial(announce, environment))


def clock_of(settings: Settings) -> Callable[[], float]:
    """Returns the system clock. In tests, the clock is shifted by the number of seconds in a file."""
    file = settings.clock_file
    if file is None:
        return time.time

    def moved() -> float:
        try:
            return time.time() + float(file.read_text())
        except (OSError, ValueError):
            return time.time()

    return moved
