"""Where a store or a gate is: opening it again finds what was left there. And what the tests of stores share."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import apsw
import asyncpg

from petstore.audit import AuditEntry
from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy, open_gate
from petstore.pets import NewPet
from petstore.store import Store, StorePolicy, Subject, close_stores, open_stores
from petstore.store.limits import StoreLimits
from petstore.store.postgres.pool import PostgresPool
from petstore.store.sqlite import SqliteStore
from petstore.store.sqlite.connection import connect
from tests.backends import Postgres, shared

T = TypeVar("T")

NOW = 1_800_000_000  # a whole hour
ENTRY = AuditEntry(5.0, "a test", "test", "x")
# A machine that stalls is no fault of the store's: only tests of timeouts use the usual ones.
PATIENT = StoreLimits(request_timeout=30, busy_timeout=29, statement_timeout=29, connect_timeout=10)
# A row that the tables refuse is a bug of the caller's, which gets the driver's own error.
REFUSED_ROW = (apsw.ConstraintError, asyncpg.IntegrityConstraintViolationError)


class StorePlace(NamedTuple):
    data: Path
    url: str | None = None

    @asynccontextmanager
    async def open(
        self, changes: list[Subject] | None = None, policy: StorePolicy | None = None
    ) -> AsyncIterator[Store]:
        """The live environment's store, when it answers; `changes` collects what `on_commit` is called with."""

        async def on_commit(subject: Subject) -> None:
            if changes is not None:
                changes.append(subject)

        stores = open_stores(self.url, self.data, policy or StorePolicy(limits=PATIENT), lambda _: on_commit)
        try:
            await _answering(stores["live"])
            yield stores["live"]
        finally:
            await close_stores(stores.values())

    def use(
        self,
        work: Callable[[Store], Awaitable[T]],
        changes: list[Subject] | None = None,
        policy: StorePolicy | None = None,
    ) -> T:
        async def inside() -> T:
            async with self.open(changes, policy) as store:
                return await work(store)

        return asyncio.run(inside())

    def by_hand(self, sql: str) -> list[Any]:
        """Execute a statement beside the service; `pets` is the live environment's."""
        if self.url is not None:
            return shared(Postgres).execute(sql, self.url + "?options=-csearch_path%3Dpetstore_live")
        with closing(connect(self.data / "live.db")) as connection:
            return connection.execute(sql).fetchall()


async def _answering(store: Store) -> None:
    """The first call migrates the schema, which may take longer than a request waits, on a busy machine."""
    for _ in range(20):
        with suppress(Unavailable):
            return await store.database.ping()
    return await store.database.ping()


class WatchedCursor(apsw.Cursor):
    def execute(self, sql: str, *values: Any, **options: Any) -> apsw.Cursor:  # type: ignore[override]  # passed on
        watched = cast(WatchedConnection, self.connection)
        watched.before(sql)
        cursor = super().execute(sql, *values, **options)
        watched.after(sql)
        return cursor


class WatchedConnection(apsw.Connection):
    """Calls `before` and `after` with the text of each statement; `before` may raise, or wait."""

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self.cursor_factory = WatchedCursor

    def before(self, sql: str) -> None: ...

    def after(self, sql: str) -> None: ...


@asynccontextmanager
async def sqlite_store(
    data: Path,
    limits: StoreLimits | None = None,
    kind: type[apsw.Connection] = apsw.Connection,
    changes: list[Subject] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[SqliteStore]:
    """The live environment's store on SQLite, with limits, connections and a clock of the test's own."""

    async def on_commit(subject: Subject) -> None:
        if changes is not None:
            changes.append(subject)

    connecting = partial(connect, kind=kind)
    store = SqliteStore(data / "live.db", "live", on_commit, limits or PATIENT, connecting, clock)
    try:
        yield store
    finally:
        await store.database.close()


@asynccontextmanager
async def postgres_pool(
    place: StorePlace, size: int = 1, limits: StoreLimits | None = None, *, pgbouncer: bool = False
) -> AsyncIterator[PostgresPool]:
    """Connections to the same place, for statements of the test's own."""
    assert place.url is not None
    pool = PostgresPool(place.url, [], StorePolicy(size, pgbouncer, limits=limits or PATIENT))
    try:
        yield pool
    finally:
        await pool.close()


async def nobody_is_connected(place: StorePlace) -> None:
    """Returns when no process has a connection of the store's to this place. Raises TimeoutError."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'petstore' AND datname = current_database()"
    other = await asyncpg.connect(place.url)
    async with asyncio.timeout(10):  # the server notices when it comes to it
        while await other.fetchval(sql) > 0:
            await asyncio.sleep(0.01)
    await other.database.close()


async def batches(*names: str) -> AsyncIterator[list[NewPet]]:
    for name in names:
        yield [NewPet(name, 1)]


async def batch(*pets: NewPet) -> AsyncIterator[list[NewPet]]:
    yield list(pets)


async def names(store: Store) -> list[str]:
    return [pet.name for pet in (await store.pets.page(after=0, limit=10**6, status=None)).pets]


class GatePlace(NamedTuple):
    data: Path
    url: str | None = None

    def open(self, policy: GatePolicy | None = None) -> Gate:
        """A gate that takes the time it is given."""
        chosen = policy or GatePolicy()
        return open_gate(self.url, self.data, chosen._replace(given_clock=True))

    def use(self, work: Callable[[Gate], Awaitable[T]], policy: GatePolicy | None = None) -> T:
        async def inside() -> T:
            gate = self.open(policy)
            try:
                return await work(gate)
            finally:
                await gate.close()

        return asyncio.run(inside())


def opened(path: Path) -> list[str]:
    """What this process has open of a database: the file, its log and the log's index."""
    names = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [name for name in names if name.startswith(str(path))]
