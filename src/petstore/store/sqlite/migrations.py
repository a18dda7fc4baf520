"""Brings a SQLite file to the newest schema."""

import contextlib
from pathlib import Path

import apsw

from petstore.errors import OperatorError
from petstore.store.schema import OLDEST_SCHEMA, migrations
from petstore.store.sqlite.connection import WriteLock, connect

RESTORE = "bring a backup back with petstore restore FILE --force, which keeps what is there"


def needs_upgrade(path: Path) -> bool:
    """Whether release 1.1 has written the file. False for a file that is not there, or cannot be read."""
    try:
        with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
            version: int = connection.pragma("user_version")
            return version == OLDEST_SCHEMA
    except apsw.Error:
        return False


def migrate(path: Path) -> None:
    """Raises OperatorError when the file cannot be used, or when another version has written it.

    No process of release 1.1 may use a file that it has written: see `needs_upgrade`.
    """
    try:
        with contextlib.closing(WriteLock(path)) as lock, lock, contextlib.closing(connect(path)) as connection:
            if connection.readonly("main"):
                raise apsw.ReadOnlyError
            _migrate(connection, path)
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
        raise OperatorError(
            f"{path}: cannot be opened for writing; give the user of this service the rights"
        ) from error
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise OperatorError(f"{path}: is damaged, or not a database of Petstore; {RESTORE}") from error
    except apsw.Error as error:
        raise OperatorError(f"{path}: cannot be opened: {error}") from error


def _migrate(connection: apsw.Connection, path: Path) -> None:
    version = connection.pragma("user_version")
    try:
        needed = migrations("sqlite", version)
    except OperatorError as error:
        raise OperatorError(f"{path}: {error}; or restore a backup") from None
    for number, file in needed:
        connection.execute("BEGIN IMMEDIATE")
        # No version after 1.1 has triggers. A file may come from elsewhere: nothing that it brings may run.
        triggers = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            connection.execute(f"DROP TRIGGER {apsw.format_sql_value(str(name))}")
        connection.execute(file.read_text())
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
