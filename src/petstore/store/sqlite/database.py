"""Runs the shared SQL on a SQLite file: reads in the event loop's thread, transactions in the writer's thread."""

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import apsw

from petstore.changes import Change
from petstore.errors import OperatorError
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store.database import Bounds, T, Transaction, Tx, Unchanged
from petstore.store.freshness import Announce, Freshness, Numbers, numbers_sql
from petstore.store.schema import Row, Table
from petstore.store.sqlite.connection import connect, translate, translating
from petstore.store.sqlite.writer import Writer

_ANY = re.compile(r"= ANY\((\?\d+)\)")
_NUMBERS = numbers_sql("main")


class SqliteDatabase:
    """Implements `Database` for SQLite. See the protocol for a description of each method."""

    immediate = True
    # The timeout is long because usage that is committed too late would be added again, and therefore counted twice.
    usage_timeout = 60.0

    schema = "main"
    for_update = skip_locked = ""  # row locks are not needed, because a transaction locks the whole file
    counters = "(SELECT name, seq AS last FROM sqlite_sequence)"

    def __init__(
        self,
        path: Path,
        environment: Environment,
        announce: Announce,
        bounds: Bounds,
        connect: Callable[[Path], apsw.Connection] = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens a file, which must have the newest schema. Tests use `connect` and `clock` to inject faults."""
        self.environment: Environment = environment
        self.bounds = bounds
        self.freshness = Freshness(announce, self._numbers)
        self._path = path
        self._reader = connect(path)
        try:
            self._reader.pragma("query_only", "ON")
            self._cursor = self._reader.cursor()  # shared by all reads, because creating a cursor takes a microsecond
            self._read_health = Health("store", environment, "read")
            self._writer = Writer(path, environment, self.freshness, bounds, connect, clock)
        except BaseException:
            self._reader.close()
            raise

    async def read(self, sql: str, *values: Any) -> list[Row]:
        # Fetch all rows, because an unfinished statement would prevent SQLite from restarting the write-ahead log.
        try:
            rows = self._cursor.execute(translated(sql), values).fetchall()
        except apsw.Error as error:
            fault = translate(error, self._path)
            if fault is error:
                raise
            self._read_health.failed(fault)
            raise fault from error
        if self._read_health.down:
            self._read_health.worked()
        return rows

    async def read_long(self, sql: str, *values: Any) -> list[Row]:
        """Runs the query in another thread, so that it does not block the event loop."""

        def work() -> list[Row]:
            with closing(connect(self._path, readonly=True)) as connection:
                return connection.execute(translated(sql), values).fetchall()

        with translating(self._path):
            return await asyncio.to_thread(work)

    async def write(
        self, transaction: Transaction[T], changes: Collection[Change], timeout_seconds: float | None = None
    ) -> T:
        try:
            return await self._writer.call(lambda connection: run(connection, transaction), changes, timeout_seconds)
        except Unchanged as unchanged:
            result: T = unchanged.result
            return result

    def add(
        self,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None,
        deadline: float | None,
        key_id: str,
    ) -> "asyncio.Future[Added]":
        return self._writer.add(new, now, idempotency_key, deadline, key_id)

    async def _numbers(self) -> Numbers:
        return Numbers(*(await self.read(_NUMBERS))[0])

    def contains(self, column: str, place: int) -> str:
        return f"instr(lower({column}), ${place}) > 0"

    async def lock_pet_ids(self, tx: Tx) -> None:
        """Does nothing, because a transaction locks the whole file."""

    async def draw_pet_ids(self, tx: Tx, count: int) -> int:
        rows = await tx.execute("SELECT seq FROM sqlite_sequence WHERE name = 'pets'")
        last: int = rows[0][0] if rows else 0
        await raise_last_id(tx, "pets", last + count)
        return last + 1

    async def raise_last_id(self, tx: Tx, table: str, last: int) -> None:
        await raise_last_id(tx, table, last)

    def check_space(self) -> None:
        directory = self._path.parent
        free, least = shutil.disk_usage(directory).free, self.bounds.import_free_bytes
        if free < least:
            raise OperatorError(
                f"{directory}: only {free // 2**20:,} MiB are free, but an import requires {least // 2**20:,} MiB;"
                " free some space first"
            )

    async def ping(self) -> None:
        await self.read("SELECT id FROM pets LIMIT 1")

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        await self._writer.close()
        self._reader.close()

    def release(self) -> None:
        """Closes a database whose writer has not started."""
        self._reader.close()


async def raise_last_id(tx: Tx, table: str, last: int) -> None:
    """Ensures that every id assigned later in this table is higher than `last`."""
    if await tx.execute("SELECT 1 FROM sqlite_sequence WHERE name = $1", table):
        await tx.execute("UPDATE sqlite_sequence SET seq = max(seq, $1) WHERE name = $2", last, table)
    else:
        await tx.execute("INSERT INTO sqlite_sequence (seq, name) VALUES ($1, $2)", last, table)


class SqliteTx:
    """Implements `Tx` on a connection. No method suspends."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, *values: Any) -> list[Row]:
        return self._connection.execute(translated(sql), values).fetchall()

    async def for_each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.executemany(translated(sql), rows)

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        self._connection.executemany(_insert_into(table), rows)


def run(connection: apsw.Connection, transaction: Transaction[T]) -> T:
    """Runs a transaction's statements and returns its result. Does not execute BEGIN or COMMIT.

    Raises apsw.Error if a statement fails, and RuntimeError if the transaction awaits anything but its statements.
    """
    running = transaction(SqliteTx(connection))
    try:
        running.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        running.close()
    raise RuntimeError("a transaction awaited something other than its statements")


def _insert_into(table: Table) -> str:
    places = ", ".join("?" for _ in table.columns)
    return f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})"


@lru_cache(maxsize=256)
def translated(sql: str) -> str:
    """Translates a statement from the shared dialect to SQLite. A list is bound as a JSON array (see `connect`)."""
    return _ANY.sub(r"IN (SELECT value FROM json_each(\1))", sql.replace("$", "?"))
