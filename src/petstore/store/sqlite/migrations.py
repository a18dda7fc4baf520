"""Brings a SQLite file to the newest schema."""

import contextlib
from importlib import resources
from pathlib import Path

import apsw

from petstore.errors import OperatorError
from petstore.store.schema import NEWER
from petstore.store.sqlite.connection import connect
from petstore.store.sqlite.write_lock import WriteLock

MIGRATIONS = sorted(
    resources.files("petstore.store").joinpath("migrations/sqlite").iterdir(), key=lambda file: file.name
)
RESTORE = "bring a backup back with petstore restore FILE --force, which keeps what is there"


def migrate(path: Path) -> None:
    """Raises OperatorError when the file cannot be used, or when a newer version has written it."""
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
        raise OperatorError(f"{path}: is damaged, or no database of Petstore's; {RESTORE}") from error
    except apsw.Error as error:
        raise OperatorError(f"{path}: cannot be opened: {error}") from error


def _migrate(connection: apsw.Connection, path: Path) -> None:
    version = connection.pragma("user_version")
    if version > len(MIGRATIONS):
        raise OperatorError(f"{path}: {NEWER.format(version, len(MIGRATIONS))} or restore a backup")
    for number, file in enumerate(MIGRATIONS[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(file.read_text())
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
