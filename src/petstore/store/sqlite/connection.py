"""A SQLite file: the settings of a connection, SQLite's errors as ours, the queue of writers."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import apsw
import msgspec

from petstore.errors import DiskFull, PetstoreError, Unavailable
from petstore.files import open_file
from petstore.timeouts import CLIENT

BUSY_TIMEOUT = CLIENT.step

# When the log has this many pages (16 MiB), SQLite copies it into the file: so rarely that writers do not notice.
WAL_PAGES = 4096
FILE_PRAGMAS: dict[str, Any] = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "wal_autocheckpoint": WAL_PAGES,
    "journal_size_limit": WAL_PAGES * 4096,
}
PRAGMAS = {"foreign_keys": "ON", "trusted_schema": "OFF", "cache_size": -16 * 1024}


def connect(path: Path, *, readonly: bool = False, kind: type[apsw.Connection] = apsw.Connection) -> apsw.Connection:
    """A connection for one thread at a time; `kind` is for tests that inject faults. Raises apsw.Error."""
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    # Without its mutexes, which SQLite takes for every value of every row. Of a path without links, because NOFOLLOW
    # refuses any link in the path, and a link to the data directory is the operator's.
    flags |= apsw.SQLITE_OPEN_NOMUTEX | apsw.SQLITE_OPEN_NOFOLLOW
    connection = kind(str(path.parent.resolve() / path.name), flags=flags)
    try:
        # First of all: the statements below can already meet a locked file.
        set_busy_timeout(connection, BUSY_TIMEOUT)
        # Otherwise SQLite plans a statement anew for another value of a parameter.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.convert_binding = _converted
        # One by one: of several in one text, SQLite would leave out those after the first that returns a row.
        for name, value in (PRAGMAS if readonly else FILE_PRAGMAS | PRAGMAS).items():
            connection.pragma(name, value)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_examine(path: Path) -> apsw.Connection:
    """A connection that leaves the file as it is, whether or not a service uses it. Raises apsw.Error."""
    # Without a log, no process has the file open. `immutable` then keeps SQLite from creating one.
    log = path.with_name(path.name + "-wal")
    address = f"file:{quote(str(path.absolute()))}?mode=ro" + ("" if log.exists() else "&immutable=1")
    connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    set_busy_timeout(connection, BUSY_TIMEOUT)
    connection.pragma("trusted_schema", "OFF")
    return connection


def _converted(_cursor: apsw.Cursor, _place: int, value: object) -> str:
    """For a value that SQLite has no type for: a list becomes a JSON array, and anything else is a bug."""
    if type(value) is not list:
        raise TypeError(f"SQLite has no type for {type(value).__name__}")
    return msgspec.json.encode(value).decode()


def set_busy_timeout(connection: apsw.Connection, seconds: float) -> None:
    connection.set_busy_timeout(max(0, int(seconds * 1000)))


# Errors

# Only a bug causes these: a statement, a value or a row that SQLite cannot take, whatever the state of the file.
BUGS = (
    apsw.SQLError, apsw.ConstraintError, apsw.MismatchError, apsw.MisuseError, apsw.RangeError, apsw.TooBigError,
    apsw.BindingsError, apsw.IncompleteExecutionError, apsw.CursorClosedError, apsw.ThreadingViolationError,
)  # fmt: skip


def translate(error: Exception) -> Exception:
    """Unavailable for what SQLite or the file system reports; ours and bugs stay themselves."""
    if isinstance(error, (PetstoreError, *BUGS)) or not isinstance(error, apsw.Error | OSError):
        return error
    damaged = isinstance(error, apsw.CorruptError | apsw.NotADBError)
    what_to_do = "; `petstore check` says which file is damaged" if damaged else ""
    kind = DiskFull if isinstance(error, apsw.FullError) else Unavailable
    outage = kind(f"the store failed: {type(error).__name__}: {error}{what_to_do}")
    outage.__cause__ = error
    return outage


@contextmanager
def translating() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error) from error


# The queue of writers


class WriteLock:
    """A file lock, across processes, that a writer holds while it waits for SQLite's own lock.

    SQLite waits by sleeping and trying again, which starves some of several busy writers. The kernel wakes the waiters
    of a file lock in turn, and releases the lock of a process that dies.
    """

    def __init__(self, path: Path) -> None:
        """`path` is the database's."""
        self._path = path.with_name(path.name + "-turn")
        self._file: int | None = None

    def __enter__(self) -> None:
        if self._file is None:
            self._file = open_file(self._path)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
