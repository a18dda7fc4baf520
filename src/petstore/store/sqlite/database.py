"""Runs the shared SQL on a SQLite file: reads in the event loop's thread, transactions in the writer's."""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import apsw
import msgspec

from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.store import OnCommit, Subject
from petstore.store.limits import StoreLimits
from petstore.store.schema import Row, Table
from petstore.store.sql import Database, PutRows, Statement, Step, T, Transaction
from petstore.store.sqlite.connection import connect
from petstore.store.sqlite.errors import translate, translating
from petstore.store.sqlite.migrations import migrate
from petstore.store.sqlite.writer import Writer

_ANY = re.compile(r"= ANY\((\?\d+)\)")


class SqliteDatabase(Database):
    schema = "main"
    for_update = skip_locked = ""  # a transaction has the whole file to itself
    clock = "unixepoch('subsec')"
    # An answer may come late: usage that was refused and then written after all would be counted twice.
    usage_timeout = 60.0
    counters = "(SELECT name, seq AS last FROM sqlite_sequence)"

    def __init__(
        self,
        path: Path,
        environment: Environment,
        on_commit: OnCommit,
        limits: StoreLimits,
        connect: Callable[[Path], apsw.Connection] = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tests inject faults with `connect` and `clock`. Raises OperatorError when the file cannot be used."""
        super().__init__(environment, on_commit, limits)
        migrate(path)
        self._path = path
        self._reader = connect(path)
        try:
            self._reader.pragma("query_only", "ON")
            self._cursor = self._reader.cursor()  # one for all reads: a new one for each would cost a microsecond
            self._read_health = Health("store", environment, "read")
            self._writer = Writer(path, environment, on_commit, limits, connect, clock)
        except BaseException:
            self._reader.close()
            raise

    def _rows(self, sql: str, bindings: tuple[Any, ...]) -> list[Row]:
        # All rows at once: an unfinished statement would keep its snapshot, and SQLite could not start the log over.
        try:
            rows = self._cursor.execute(sql, bindings).fetchall()
        except apsw.Error as error:
            fault = translate(error)
            if fault is error:
                raise
            self._read_health.failed(fault)
            raise fault from error
        if self._read_health.down:
            self._read_health.worked()
        return rows

    async def _fetch(self, sql: str, *values: Any) -> list[Row]:
        return self._rows(translated(sql), _bindings(values))

    async def _fetch_long(self, sql: str, *values: Any) -> list[Row]:
        """In another thread, so that the event loop goes on."""

        def work() -> list[Row]:
            with closing(connect(self._path, readonly=True)) as connection:
                return connection.execute(translated(sql), _bindings(values)).fetchall()

        with translating():
            return await asyncio.to_thread(work)

    async def _run(
        self, transaction: Transaction[T], changes: Subject | None = None, timeout_seconds: float | None = None
    ) -> T:
        return await self._writer.call(lambda connection: run(connection, transaction), changes, timeout_seconds)

    def _contains(self, column: str, place: int) -> str:
        return f"instr(lower({column}), ${place}) > 0"

    def _lock_pet_ids(self) -> Transaction[None]:
        yield from ()  # a transaction has the whole file to itself

    def _draw_pet_ids(self, count: int) -> Transaction[int]:
        rows = yield Statement("SELECT seq FROM sqlite_sequence WHERE name = 'pets'")
        last: int = rows[0][0] if rows else 0
        yield from raise_last_id("pets", last + count)
        return last + 1

    def _raise_last_id(self, table: str, last: int) -> Transaction[None]:
        return raise_last_id(table, last)

    def release(self) -> None:
        """Closes a store that was never used."""
        self._reader.close()


def raise_last_id(table: str, last: int) -> Transaction[None]:
    """Let no id up to this one be given out again."""
    if (yield Statement("SELECT 1 FROM sqlite_sequence WHERE name = $1", (table,))):
        yield Statement("UPDATE sqlite_sequence SET seq = max(seq, $1) WHERE name = $2", (last, table))
    else:
        yield Statement("INSERT INTO sqlite_sequence (seq, name) VALUES ($1, $2)", (last, table))


def run(connection: apsw.Connection, transaction: Transaction[T]) -> T:
    """Execute the statements of a transaction that has begun. Raises apsw.Error."""
    try:
        step = next(transaction)
        while True:
            step = transaction.send(_execute(connection, step))
    except StopIteration as end:
        result: T = end.value
        return result


def _execute(connection: apsw.Connection, step: Step) -> list[Row]:
    if isinstance(step, Statement):
        return connection.execute(translated(step.sql), _bindings(step.values)).fetchall()
    sql = _insert_into(step.table) if isinstance(step, PutRows) else translated(step.sql)
    connection.executemany(sql, step.rows)
    return []


def _insert_into(table: Table) -> str:
    places = ", ".join("?" for _ in table.columns)
    return f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})"


@lru_cache(maxsize=256)
def translated(sql: str) -> str:
    """The shared dialect, in SQLite's."""
    return _ANY.sub(r"IN (SELECT value FROM json_each(\1))", sql.replace("$", "?"))


def _bindings(values: Any) -> tuple[Any, ...]:
    return tuple(msgspec.json.encode(value).decode() if isinstance(value, list) else value for value in values)
