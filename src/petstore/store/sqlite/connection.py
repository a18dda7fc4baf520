"""Opens connections to SQLite files, translates SQLite's errors, and provides a fair lock for writers."""

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

# When the write-ahead log has grown to this many pages (16 MiB), its contents are copied into the database file. Other
# processes can write in the meantime.
WAL_PAGES = 4096
FILE_PRAGMAS: dict[str, Any] = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "wal_autocheckpoint": WAL_PAGES,
    "journal_size_limit": WAL_PAGES * 4096,
}
PRAGMAS = {"foreign_keys": "ON", "trusted_schema": "OFF", "cache_size": -16 * 1024}


def connect(path: Path, *, readonly: bool = False, kind: type[apsw.Connection] = apsw.Connection) -> apsw.Connection:
    """Opens a connection. Only one thread may use it at a time. Raises apsw.Error if the file cannot be opened.

    Tests use `kind` to inject faults.
    """
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    flags |= apsw.SQLITE_OPEN_NOMUTEX  # otherwise, SQLite would lock a mutex for every value of every row
    connection = kind(str(path), flags=flags)
    try:
        # Set the timeout first, because another process may hold a lock when the statements below run.
        set_busy_timeout(connection, BUSY_TIMEOUT)
        # Without this setting, SQLite may replan a statement when a parameter changes.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.convert_binding = _converted
        # Run each pragma separately, because SQLite would skip all pragmas after the first one that returns a row.
        for name, value in (PRAGMAS if readonly else FILE_PRAGMAS | PRAGMAS).items():
            connection.pragma(name, value)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_examine(path: Path) -> apsw.Connection:
    """Opens a connection that does not change the file. Can be used while a service has the file open.

    Raises apsw.Error if the file cannot be opened.
    """
    # If there is no write-ahead log, no process has the file open. In that case, use `immutable`, so that SQLite does
    # not create a log.
    log = path.with_name(path.name + "-wal")
    address = f"file:{quote(str(path.absolute()))}?mode=ro" + ("" if log.exists() else "&immutable=1")
    connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    set_busy_timeout(connection, BUSY_TIMEOUT)
    connection.pragma("trusted_schema", "OFF")
    return connection


def _converted(_cursor: apsw.Cursor, _place: int, value: object) -> str:
    """Converts a list to a JSON array, because SQLite has no list type. Raises TypeError for any other type."""
    if type(value) is not list:
        raise TypeError(f"SQLite has no type for {type(value).__name__}")
    return msgspec.json.encode(value).decode()


def set_busy_timeout(connection: apsw.Connection, seconds: float) -> None:
    connection.set_busy_timeout(max(0, int(seconds * 1000)))


# Errors

# These errors are always bugs. They mean that SQLite rejected the statement, the value or the row.
BUGS = (
    apsw.SQLError, apsw.ConstraintError, apsw.MismatchError, apsw.MisuseError, apsw.RangeError, apsw.TooBigError,
    apsw.BindingsError, apsw.IncompleteExecutionError, apsw.CursorClosedError, apsw.ThreadingViolationError,
)  # fmt: skip


def translate(error: Exception, path: Path) -> Exception:
    """Converts errors from SQLite and the file system to Unavailable. `path` is the path of the database file.

    Returns any other error, including a bug, unchanged.
    """
    if isinstance(error, (PetstoreError, *BUGS)) or not isinstance(error, apsw.Error | OSError):
        return error
    damaged = isinstance(error, apsw.CorruptError | apsw.NotADBError)
    what_to_do = "; `petstore check` says which file is damaged" if damaged else ""
    cause = f"{type(error).__name__}: {error}"
    outage = (
        DiskFull(str(path.absolute().parent), cause)
        if isinstance(error, apsw.FullError)
        else Unavailable(f"the store failed: {cause}{what_to_do}")
    )
    outage.__cause__ = error
    return outage


@contextmanager
def translating(path: Path) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error


# The write lock


class WriteLock:
    """A file lock that the writers in all processes acquire before SQLite's own lock.

    SQLite waits for its lock by sleeping and retrying, so some writers can starve if several are busy. The kernel
    grants a file lock to processes in the order in which they request it, and releases it if its holder dies.
    """

    def __init__(self, path: Path) -> None:
        """`path` is the path of the database file, not of the lock file."""
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
