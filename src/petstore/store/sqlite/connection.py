"""Connections to a SQLite file, with the settings that this service wants."""

from pathlib import Path
from typing import Any

import apsw

from petstore.store.limits import StoreLimits

BUSY_TIMEOUT = StoreLimits().busy_timeout

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
    # Without its mutexes, which SQLite takes for every value of every row.
    connection = kind(str(path), flags=flags | apsw.SQLITE_OPEN_NOMUTEX)
    try:
        # First of all: the statements below can already meet a locked file.
        set_busy_timeout(connection, BUSY_TIMEOUT)
        # Otherwise SQLite plans a statement anew for another value of a parameter.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # One by one: of several in one text, SQLite would leave out those after the first that returns a row.
        for name, value in (PRAGMAS if readonly else FILE_PRAGMAS | PRAGMAS).items():
            connection.pragma(name, value)
    except BaseException:
        connection.close()
        raise
    return connection


def set_busy_timeout(connection: apsw.Connection, seconds: float) -> None:
    connection.set_busy_timeout(max(0, int(seconds * 1000)))
