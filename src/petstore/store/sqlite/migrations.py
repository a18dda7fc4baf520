"""Recognises SQLite files written by Petstore, and migrates them to the newest schema version."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw

from petstore.errors import OperatorError
from petstore.job_control import unstoppable
from petstore.store.schema import NOT_MIGRATED, UNRECOGNISED, Migration, migrations_in, pending
from petstore.store.sqlite.connection import WriteLock, connect, connect_to_examine

APPLICATION_ID = 0x50657453  # "PetS" in ASCII; stored in the header of every file written by Petstore 1.0 or later
RESTORE = "restore a backup with `petstore restore FILE --force`, which keeps the current files"
TYPES = {
    "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "integer": "INTEGER",
    "real": "REAL",
    "bytes": "BLOB",
    "key": "text",
    "strict": " STRICT",
    "clustered": " STRICT, WITHOUT ROWID",
}
KNOWN = migrations_in(TYPES)

# The byte positions of three values at the beginning of a file: user_version, application_id, and the number of
# entries in the schema.
_HEAD = 108
_FIELDS = ((60, 64), (68, 72), (103, 105))


def schema_version(connection: apsw.Connection) -> int:
    """Returns the schema version of a file, or 0 if it is empty, for example because startup was interrupted.

    Raises OperatorError if Petstore did not write the file.
    """
    entries = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
    return _recognised(connection.pragma("application_id"), connection.pragma("user_version"), is_empty=not entries)


def _recognised(application_id: int, version: int, *, is_empty: bool) -> int:
    if application_id == APPLICATION_ID:
        return version
    if application_id or version or not is_empty:
        raise OperatorError(UNRECOGNISED)
    return 0


def migrate(path: Path, migrations: Sequence[Migration] = KNOWN) -> None:
    """Creates the file or migrates it to the newest schema, even while other processes are using it.

    Raises OperatorError if the file cannot be used. Never changes a file that Petstore did not write.
    """
    check_recognised(path, migrations)
    with (
        unstoppable,
        _errors_of(path),
        contextlib.closing(WriteLock(path)) as lock,
        lock,
        contextlib.closing(connect(path)) as connection,
    ):
        if connection.readonly("main"):
            raise apsw.ReadOnlyError
        for migration in pending(migrations, schema_version(connection)):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(migration.sql)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", migration.version)
            connection.execute("COMMIT")


def check_recognised(path: Path, migrations: Sequence[Migration] = KNOWN) -> None:
    """Raises OperatorError if Petstore did not write the file, or if a newer version wrote it. Changes nothing."""
    with _errors_of(path):
        if path.exists():
            pending(migrations, _version_in(path))


def check_migrated(path: Path) -> None:
    """Raises OperatorError if the file is missing, cannot be used, or needs a migration. Changes nothing."""
    with _errors_of(path):
        if not path.exists() or pending(KNOWN, _version_in(path)):
            raise OperatorError(NOT_MIGRATED)


def _version_in(path: Path) -> int:
    """Returns a file's schema version. Never changes the file, even if other processes are opening it."""
    if path.with_name(path.name + "-wal").exists():  # the write-ahead log may contain a newer header
        with contextlib.closing(connect_to_examine(path)) as connection:
            return schema_version(connection)
    # Read the header directly, because SQLite would create a log or, with `immutable`, could see an incomplete change.
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        return 0
    if len(head) < _HEAD or not head.startswith(b"SQLite format 3\0"):
        raise apsw.NotADBError
    version, application_id, entries = (int.from_bytes(head[start:end]) for start, end in _FIELDS)
    return _recognised(application_id, version, is_empty=entries == 0)


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OperatorError as error:
        raise OperatorError(f"{path}: {error}") from None
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
        raise OperatorError(
            f"{path}: cannot be opened for writing; give the service's user write permission"
        ) from error
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise OperatorError(f"{path}: is damaged or not a Petstore database; {RESTORE}") from error
    except apsw.Error as error:
        raise OperatorError(f"{path}: cannot be opened: {error}") from error
