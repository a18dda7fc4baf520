"""What the rooms of the SQLite store share: a connection to read with, the writer, and how a deed is written."""

from pathlib import Path
from typing import Any

import apsw

from petstore.health import Health
from petstore.keys import Environment
from petstore.ledger import Deed
from petstore.store import OnCommit
from petstore.store.sqlite.file import connect, migrate, translated
from petstore.store.sqlite.writer import Writer


class SqliteBase:
    def __init__(self, path: Path, environment: Environment, on_commit: OnCommit) -> None:
        migrate(path)
        self._path = path
        self._environment: Environment = environment
        self._read = connect(path)
        self._read.execute("PRAGMA query_only = ON")
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


def write_deed(connection: apsw.Connection, deed: Deed) -> None:
    connection.execute(
        "INSERT INTO deeds (at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?)",
        (deed.at, deed.actor, deed.action, deed.subject, deed.detail),
    )
