"""Copies of a SQLite file that a service is writing to: the state of one moment, taken without stopping anyone."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import apsw

from petstore.audit import AuditEntry
from petstore.store.sqlite.base import keep_ids, write_entry
from petstore.store.sqlite.file import BUSY_MILLISECONDS, connect, translated

STEP = 1_000  # pages between two reports of progress


class Snapshot:
    """The file as it is now: whatever was committed before is in it, whatever comes after is not.

    While it is open SQLite's log cannot start over, so it grows by what is written meanwhile.
    """

    def __init__(self, path: Path) -> None:
        """Raises Unavailable."""
        try:
            self._source = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
            self._source.set_busy_timeout(BUSY_MILLISECONDS)
            # A read that stays open: without it, each commit of others would make a copy in steps begin anew.
            self._source.execute("BEGIN")
            self.bytes: int = self._source.pragma("page_count") * self._source.pragma("page_size")
        except apsw.Error as error:
            raise translated(error) from error

    def copy(self, target: Path, progress: Callable[[int], None]) -> None:
        """`progress` is told of the bytes as they are copied. Raises Unavailable."""
        try:
            with contextlib.closing(apsw.Connection(str(target))) as copy:
                copy.pragma("synchronous", "OFF")
                copy.pragma("journal_mode", "OFF")
                page_size: int = self._source.pragma("page_size")
                with copy.backup("main", self._source, "main") as backup:
                    done = 0
                    while not backup.done:
                        backup.step(STEP)
                        pages = backup.page_count - backup.remaining
                        progress((pages - done) * page_size)
                        done = pages
        except apsw.Error as error:
            raise translated(error) from error

    def close(self) -> None:
        self._source.close()


def note(path: Path, entry: AuditEntry) -> None:
    """Write a entry into a file. An older schema will do: the audit log is the same in all. Raises Unavailable."""
    try:
        with contextlib.closing(connect(path)) as connection:
            write_entry(connection, entry)
    except apsw.Error as error:
        raise translated(error) from error


def take_over_ids(path: Path, replaced: Path) -> bool:
    """Let no id be given out that the file to be replaced has given out: whether that could be read.

    Raises Unavailable.
    """
    try:
        with contextlib.closing(apsw.Connection(str(replaced), flags=apsw.SQLITE_OPEN_READWRITE)) as old:
            given = old.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
    except apsw.Error:
        return False  # it is damaged, which may well be why it is replaced
    try:
        with contextlib.closing(connect(path)) as connection:
            keep_ids(connection, given)
    except apsw.Error as error:
        raise translated(error) from error
    return True
