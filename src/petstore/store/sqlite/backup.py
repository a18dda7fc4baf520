"""Makes a consistent copy of a SQLite file while a service continues to write to it."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from petstore.audit import AuditEntry
from petstore.store.audit import add_entries
from petstore.store.sqlite.connection import BUSY_TIMEOUT, connect, set_busy_timeout, translating
from petstore.store.sqlite.database import raise_last_id, run

STEP = 1_000  # pages copied between calls to `progress`


class Snapshot:
    """A snapshot of a file. It contains everything committed before it was opened and nothing committed later.

    While a snapshot is open, SQLite cannot restart its write-ahead log, so the log grows with every write.
    """

    def __init__(self, path: Path, step: int = STEP) -> None:
        """Opens a snapshot. Raises Unavailable if the file cannot be read."""
        self._step = step
        with translating(path):
            self._source = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
            set_busy_timeout(self._source, BUSY_TIMEOUT)
            # Keep a transaction open. Otherwise, any commit by another connection would restart the copy.
            self._source.execute("BEGIN")
            self.bytes: int = self._source.pragma("page_count") * self._source.pragma("page_size")

    def copy(self, target: Path, progress: Callable[[int], None]) -> None:
        """Copies the snapshot to a file. Raises Unavailable if the copy fails.

        Calls `progress` with the number of bytes copied in each step.
        """
        # In error messages, name the backup's directory instead of the temporary directory that contains the target.
        with translating(target.parent), contextlib.closing(apsw.Connection(str(target))) as copy:
            copy.pragma("synchronous", "OFF")
            copy.pragma("journal_mode", "OFF")
            page_size: int = self._source.pragma("page_size")
            with copy.backup("main", self._source, "main") as backup:
                done = 0
                while not backup.done:
                    backup.step(self._step)
                    pages = backup.page_count - backup.remaining
                    progress((pages - done) * page_size)
                    done = pages

    def close(self) -> None:
        self._source.close()


def record_entry(path: Path, entry: AuditEntry) -> None:
    """Adds an audit entry to a file, which must have the newest schema. Raises Unavailable if the write fails."""
    with translating(path), contextlib.closing(connect(path)) as connection:
        run(connection, lambda tx: add_entries(tx, "main", entry))


class Revoked(NamedTuple):
    """The ids of revoked keys and the names of revoked operators."""

    keys: list[str]
    operators: list[str]


def revoked_only_in(replaced: Path, path: Path) -> Revoked:
    """Returns the keys and operators that are revoked in `replaced` but not in `path`.

    Returns empty lists if either file cannot be read.
    """
    revoked = "SELECT {0} FROM {1} JOIN old.{1} AS o USING ({0}) WHERE {1}.revoked IS NULL AND o.revoked IS NOT NULL"
    try:
        with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
            connection.execute("ATTACH ? AS old", (str(replaced),))
            keys, operators = (
                [str(name) for (name,) in connection.execute(revoked.format(column, table))]
                for column, table in (("id", "keys"), ("name", "operators"))
            )
    except apsw.Error:
        return Revoked([], [])
    return Revoked(keys, operators)


def take_over_ids(path: Path, replaced: Path) -> bool:
    """Ensures that the file at `path` never reuses an id that was assigned in the file at `replaced`.

    Returns False if the replaced file cannot be read. Raises Unavailable if the file at `path` cannot be changed.
    """
    try:
        with contextlib.closing(apsw.Connection(str(replaced), flags=apsw.SQLITE_OPEN_READWRITE)) as old:
            last_ids: list[Any] = old.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
    except apsw.Error:
        return False  # the file is probably damaged, which may be why it is being replaced
    with translating(path), contextlib.closing(connect(path)) as connection:
        for table, last in last_ids:
            run(connection, partial(raise_last_id, table=table, last=last))
    return True
