"""Opens and reopens stores and gates in the same location. Also has helpers for store tests."""

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
from petstore.audit import Actor
from petstore.changes import Change
from petstore.errors import Unavailable
from petstore.formats.pet_files import PetFile
from petstore.gate import Gate, GatePolicy, open_gate
from petstore.imports import Import
from petstore.pets import NewPet
from petstore.store import Store, StorePolicy, close_stores, open_stores, store_on
from petstore.store.database import Bounds
from petstore.store.freshness import Announce
from petstore.store.postgres.migrations import APPLICATION_NAME
from petstore.store.postgres.pool import PostgresPool
from petstore.store.sqlite.connection import connect
from petstore.store.sqlite.database import SqliteDatabase
from petstore.store.sqlite.migrations import migrate
from petstore.timeouts import Timeouts

T = TypeVar("T")

NOW = 1_800_000_000  # on the hour
BY = Actor("a test", 5.0)
ENTRY = BY.entry("backup", "x")  # an entry of no act of the store
# Only tests of timeouts use the default timeouts, because tests must not fail if the machine stalls.
PATIENT = Bounds(timeouts=Timeouts(40))
# If a row violates a constraint, that is a bug in the caller, which gets the driver's error.
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
        """Opens the live store and waits until it responds. `changes` collects the announced changes."""
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
        """Executes a statement in the live environment, bypassing the service."""
        if self.url is not None:
            return shared(Postgres).execute(sql, self.url + "?options=-csearch_path%3Dpetstore_live")
        with closing(connect(self.data / "live.db")) as connection:
            return connection.execute(sql).fetchall()


async def _answering(store: Store) -> None:
    """Waits until the store responds. The first call migrates the schema, which can exceed a request's deadline."""
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
    """Calls `before` and `after` with the SQL of each statement. Tests override them to raise exceptions or to wait."""

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
    announce: Announce | None = None,
) -> AsyncIterator[Store]:
    """Opens the live store on SQLite with the test's bounds, connections and clock."""
    migrate(data / "live.db")
    connecting = partial(connect, kind=kind)
    announce = announce or _collecting(changes)
    database = SqliteDatabase(data / "live.db", "live", announce, bounds or PATIENT, connecting, clock)
    try:
        yield store_on(database)
    finally:
        await database.close()


@asynccontextmanager
async def postgres_pool(
    place: StorePlace, size: int = 1, bounds: Bounds | None = None, *, pgbouncer: bool = False
) -> AsyncIterator[PostgresPool]:
    """Opens connections to the same database, for the test's own statements."""
    assert place.url is not None
    pool = PostgresPool(place.url, [], StorePolicy(size, pgbouncer, bounds=bounds or PATIENT))
    try:
        yield pool
    finally:
        await pool.close()


async def nobody_is_connected(place: StorePlace) -> None:
    """Waits until no store in any process is connected to this database. Raises TimeoutError."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()"
    other = await asyncpg.connect(place.url)
    async with asyncio.timeout(60):  # the server can take a while to notice a closed connection
        while await other.fetchval(sql, APPLICATION_NAME) > 0:
            await asyncio.sleep(0.01)
    await other.close()


async def imported(
    store: Store, *pets: NewPet, by: Actor = BY, name: str = "x", sha256: str | None = None, repeats: str = ""
) -> Import:
    """Imports these animals in chunks of the default size. `sha256` defaults to a unique value."""
    begun = await store.imports.begin(name, sha256 or secrets.token_hex(32), len(pets), by, repeats)
    size = store.database.bounds.import_chunk
    for place in range(0, len(pets), size):
        assert await store.imports.add_chunk(begun.id, place, pets[place : place + size], by.at)
    found = await store.imports.get(begun.id, by.at)
    assert found is not None
    return found


async def import_file(store: Store, file: PetFile, by: Actor = BY, repeats: str = "") -> Import:
    """Imports a file as commands do."""
    checked = await file.check()
    begun = await store.imports.begin("x.csv", checked.sha256, checked.animals, by, repeats)
    return await store.imports.add_pets(begun, partial(file.batches, checked), partial(float, by.at))


async def names(store: Store) -> list[str]:
    return [pet.name for pet in (await store.pets.page(after=0, limit=10**6, status=None)).pets]


class GatePlace(NamedTuple):
    data: Path
    url: str | None = None

    def open(self, policy: GatePolicy | None = None) -> Gate:
        """Opens a gate that takes the time from each call."""
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
    """Returns the open files of a database in this process: the database, its log and the log's index."""
    names = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [name for name in names if name.startswith(str(path))]
