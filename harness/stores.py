"""Where a store or a gate is: opening it again finds what was left there. And what the tests of stores share."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import apsw
import asyncpg

from harness.backends import Postgres, shared
from petstore.audit import AuditEntry
from petstore.changes import Change
from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy, open_gate
from petstore.pets import Import, NewPet
from petstore.store import Store, StorePolicy, close_stores, open_stores, store_on
from petstore.store.database import Bounds
from petstore.store.freshness import Announce
from petstore.store.postgres.migrations import APPLICATION_NAME
from petstore.store.postgres.pool import PostgresPool
from petstore.store.sqlite.connection import connect
from petstore.store.sqlite.database import SqliteDatabase
from petstore.store.sqlite.migrations import migrate

T = TypeVar("T")

NOW = 1_800_000_000  # a whole hour
ENTRY = AuditEntry(5.0, "a test", "test", "x")
# A machine that stalls is no fault of the store's: only tests of timeouts use the usual ones.
PATIENT = Bounds(request_timeout=30, busy_timeout=29, statement_timeout=29, connect_timeout=10)
# A row that the tables refuse is a bug of the caller's, which gets the driver's own error.
REFUSED_ROW = (apsw.ConstraintError, asyncpg.IntegrityConstraintViolationError)


def _collecting(changes: list[Change] | None) -> Announce:
    async def announce(announced: Collection[Change]) -> None:
        if changes is not None:
            for change in announced:
                changes.append(change)

    return announce


class StorePlace(NamedTuple):
    data: Path
    url: str | None = None

    @asynccontextmanager
    async def open(
        self, changes: list[Change] | None = None, policy: StorePolicy | None = None
    ) -> AsyncIterator[Store]:
        """The live environment's store, when it answers; `changes` collects what it announces."""
        announce = _collecting(changes)
        stores = open_stores(self.url, self.data, policy or StorePolicy(bounds=PATIENT), lambda _: announce)
        try:
            await _answering(stores["live"])
            yield stores["live"]
        finally:
            await close_stores(stores.values())

    def use(
        self,
        work: Callable[[Store], Awaitable[T]],
        changes: list[Change] | None = None,
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
    bounds: Bounds | None = None,
    kind: type[apsw.Connection] = apsw.Connection,
    changes: list[Change] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Store]:
    """The live environment's store on SQLite, with bounds, connections and a clock of the test's own."""
    migrate(data / "live.db")
    connecting = partial(connect, kind=kind)
    database = SqliteDatabase(data / "live.db", "live", _collecting(changes), bounds or PATIENT, connecting, clock)
    try:
        yield store_on(database)
    finally:
        await database.close()


@asynccontextmanager
async def postgres_pool(
    place: StorePlace, size: int = 1, bounds: Bounds | None = None, *, pgbouncer: bool = False
) -> AsyncIterator[PostgresPool]:
    """Connections to the same place, for statements of the test's own."""
    assert place.url is not None
    pool = PostgresPool(place.url, [], StorePolicy(size, pgbouncer, bounds=bounds or PATIENT))
    try:
        yield pool
    finally:
        await pool.close()


async def nobody_is_connected(place: StorePlace) -> None:
    """Returns when no process has a connection of the store's to this place. Raises TimeoutError."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()"
    other = await asyncpg.connect(place.url)
    async with asyncio.timeout(60):  # the server notices when it comes to it
        while await other.fetchval(sql, APPLICATION_NAME) > 0:
            await asyncio.sleep(0.01)
    await other.close()


async def imported(
    store: Store, *pets: NewPet, entry: AuditEntry = ENTRY, sha256: str | None = None, repeats: str = ""
) -> Import:
    """Imports these animals in chunks of the usual size. Without `sha256`, no other import has the same bytes."""
    begun = await store.imports.begin(sha256 or secrets.token_hex(32), len(pets), entry, repeats)
    size = store.database.bounds.import_chunk
    for place in range(0, len(pets), size):
        assert await store.imports.add_chunk(begun.id, place, pets[place : place + size], entry.at)
    found = await store.imports.get(begun.id, entry.at)
    assert found is not None
    return found


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
