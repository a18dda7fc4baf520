"""A SQLite file as this service wants it: how it is opened, migrated, shared between processes, and how it fails."""

import fcntl
import os
from importlib import resources
from pathlib import Path
from types import TracebackType

import apsw

from petstore.errors import OperatorError, PetstoreError, Unavailable
from petstore.store import PATIENCE

BUSY_MILLISECONDS = int(PATIENCE * 800)  # less than the patience, so that the reason can be told

# The log is copied into the file when it has this many pages (16 MiB): rarely enough not to be felt by writers.
WAL_PAGES = 4096
FILE_PRAGMAS = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "wal_autocheckpoint": WAL_PAGES,
    "journal_size_limit": WAL_PAGES * 4096,
}
PRAGMAS = {"foreign_keys": "ON", "trusted_schema": "OFF", "cache_size": -16 * 1024}

RESTORE = "bring a backup back with petstore restore FILE --force, which keeps what is there"

MIGRATIONS = sorted(
    (file for file in resources.files("petstore.store").joinpath("migrations/sqlite").iterdir()), key=lambda f: f.name
)


def connect(path: Path, *, readonly: bool = False) -> apsw.Connection:
    """For one thread at a time: SQLite's own locks around every value of every row are left out. Raises apsw.Error."""
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(str(path), flags=flags | apsw.SQLITE_OPEN_NOMUTEX)
    # First of all: the statements below can already meet a locked file.
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    # Otherwise another value of a parameter makes SQLite plan the same statement anew.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    for name, value in (PRAGMAS if readonly else FILE_PRAGMAS | PRAGMAS).items():
        connection.pragma(name, value)  # each to its end: of several in one text, those after a row would be left out
    return connection


def migrate(path: Path) -> None:
    """Bring the file to the newest schema, each step once. Raises OperatorError when it is newer than the code."""
    try:
        with Turn(path):
            connection = connect(path)
            try:
                if connection.readonly("main"):
                    raise apsw.ReadOnlyError
                _migrate(connection, path)
            finally:
                connection.close()
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
        raise OperatorError(
            f"{path}: cannot be opened for writing; give the user of this service the rights"
        ) from error
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise OperatorError(f"{path}: is damaged, or no database of Petstore's; {RESTORE}") from error
    except apsw.Error as error:
        raise OperatorError(f"{path}: cannot be opened: {error}") from error


def _migrate(connection: apsw.Connection, path: Path) -> None:
    version = connection.pragma("user_version")
    if version > len(MIGRATIONS):
        raise OperatorError(
            f"{path}: was written by a newer Petstore (schema {version}, this one knows {len(MIGRATIONS)});"
            " upgrade Petstore or restore a backup"
        )
    for number, file in enumerate(MIGRATIONS[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(file.read_text())
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")


class Turn:
    """A queue for the write lock across processes.

    SQLite's own way of waiting is to sleep and try again, which under several busy writers starves some of them;
    the kernel wakes the waiters of a file lock in turn, and releases the lock of a process that dies.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + "-turn")
        self._file: int | None = None

    def __enter__(self) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)


def translated(error: BaseException) -> PetstoreError:
    """Ours stay themselves; whatever SQLite or the file system says is an outage, with the cause for the log."""
    if isinstance(error, PetstoreError):
        return error
    damaged = isinstance(error, apsw.CorruptError | apsw.NotADBError)
    what_to_do = "; petstore check says which file is damaged" if damaged else ""
    outage = Unavailable(f"the store failed: {type(error).__name__}: {error}{what_to_do}")
    outage.__cause__ = error
    return outage
