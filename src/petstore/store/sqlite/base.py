"""What the rooms of the SQLite store share: a connection to read with, the writer, and how a entry is written."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import apsw

from petstore.audit import AuditEntry
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.store import OnCommit
from petstore.store.sqlite.file import connect, migrate, translated
from petstore.store.sqlite.writer import Writer


class SqliteBase:
    def __init__(self, path: Path, environment: Environment, on_commit: OnCommit) -> None:
        migrate(path)
        self._path = path
        self.environment: Environment = environment
        self._read = connect(path)
        self._read.pragma("query_only", "ON")
        self._reads = Health("store", environment, "read")
        self._writer = Writer(path, environment, on_commit)

    def _rows(self, sql: str, bindings: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        # All rows at once: an unfinished statement would hold on to its snapshot, and the log could not start over.
        try:
            rows = self._read.execute(sql, bindings).fetchall()
        except apsw.Error as error:
            outage = translated(error)
            self._reads.failed(outage)
            raise outage from error
        if self._reads.down:
            self._reads.worked()
        return rows

    async def _rows_aside(self, sql: str, bindings: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """For reads that take longer than some microseconds: in another thread, so that nobody waits for them."""

        def work() -> list[tuple[Any, ...]]:
            connection = connect(self._path, readonly=True)
            try:
                return connection.execute(sql, bindings).fetchall()
            finally:
                connection.close()

        try:
            return await asyncio.to_thread(work)
        except apsw.Error as error:
            raise translated(error) from error


def any_in(columns: Sequence[str], spellings: Sequence[str]) -> str:
    """A condition: one of the texts is part of one of the columns. Bind each spelling as often as there are columns."""
    found = (f"instr(lower({column}), ?)" for column in columns for _ in spellings)
    return f"({' OR '.join(found) or 'false'})"


def keep_ids(connection: apsw.Connection, given: Iterable[Sequence[Any]]) -> None:
    """Let no id be given out that was given out already: each table comes with its last one."""
    for table, last in given:
        connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (last, table))
        if not connection.changes():
            connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, last))


def write_entry(connection: apsw.Connection, entry: AuditEntry) -> None:
    connection.execute(
        "INSERT INTO deeds (at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?)",
        (entry.at, entry.actor, entry.action, entry.subject, entry.detail),
    )
