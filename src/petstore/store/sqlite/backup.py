"""Copies of a SQLite file, as it is at one moment, while a service goes on writing to it."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from petstore.audit import AuditEntry
from petstore.store.audit import recorded
from petstore.store.database import steps
from petstore.store.sqlite.connection import BUSY_TIMEOUT, connect, set_busy_timeout, translating
from petstore.store.sqlite.database import raise_last_id, run

STEP = 1_000  # pages between two reports of progress


class Snapshot:
    """The file as it is now: it has all that was committed before, and nothing that is committed later.

    While a snapshot is open SQLite cannot start its log over, so the log grows by what is written meanwhile.
    """

    def __init__(self, path: Path, step: int = STEP) -> None:
        """Raises Unavailable."""
        self._step = step
        with translating():
            self._source = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
            set_busy_timeout(self._source, BUSY_TIMEOUT)
            # A transaction that stays open: otherwise each commit of others would make a copy in steps begin anew.
            self._source.execute("BEGIN")
            self.bytes: int = self._source.pragma("page_count") * self._source.pragma("page_size")

    def copy(self, target: Path, progress: Callable[[int], None]) -> None:
        """`progress` is called with the number of bytes of each step. Raises Unavailable."""
        with translating(), contextlib.closing(apsw.Connection(str(target))) as copy:
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
    """Write an audit entry into a file of the newest schema. Raises Unavailable."""
    with translating(), contextlib.closing(connect(path)) as connection:
        run(connection, steps(recorded("main", entry)))


def take_over_ids(path: Path, replaced: Path) -> bool:
    """Let `path` give out no id that the file it replaces has given out: whether that could be read.

    Raises Unavailable.
    """
    try:
        with contextlib.closing(apsw.Connection(str(replaced), flags=apsw.SQLITE_OPEN_READWRITE)) as old:
            last_ids: list[Any] = old.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
    except apsw.Error:
        return False  # the file is damaged, which may well be why it is replaced
    with translating(), contextlib.closing(connect(path)) as connection:
        for table, last in last_ids:
            run(connection, raise_last_id(table, last))
    return True
