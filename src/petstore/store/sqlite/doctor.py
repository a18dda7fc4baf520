"""A look at a SQLite file from outside, which changes nothing: is it sound, how old is its schema, what is in it?"""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from petstore.store.schema import TABLES
from petstore.store.sqlite.file import BUSY_MILLISECONDS, MIGRATIONS, RESTORE

NEWEST_SCHEMA = len(MIGRATIONS)
_NEWEST = (
    "SELECT max(at) FROM (SELECT max(at) AS at FROM deeds UNION ALL SELECT max(created) FROM idempotency"
    " UNION ALL SELECT max(created) FROM keys UNION ALL SELECT max(last_used) FROM keys)"
)


class Inspection(NamedTuple):
    faults: list[str]
    schema: int
    rows: dict[str, int]
    newest: float | None  # when the latest thing in it happened, in Unix seconds


def integrity(connection: apsw.Connection) -> list[str]:
    """What SQLite finds wrong; empty when all is well."""
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check; PRAGMA foreign_key_check")]
    except apsw.CorruptError as error:
        found = [str(error)]
    return [f"{text}; {RESTORE}" for text in found if text != "ok"]


def inspect(path: Path) -> Inspection:
    """Whether or not a service runs on the file."""
    # Without a log beside it nobody has the file open, and a look that may write nothing needs to be told so.
    log = path.with_name(path.name + "-wal")
    address = f"file:{quote(str(path.absolute()))}?mode=ro" + ("" if log.exists() else "&immutable=1")
    try:
        connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            connection.set_busy_timeout(BUSY_MILLISECONDS)
            return _inspected(connection)
        finally:
            connection.close()
    except apsw.NotADBError:
        return Inspection([f"it is no database; {RESTORE}"], 0, {}, None)
    except apsw.Error as error:
        return Inspection([f"it cannot be read: {error}"], 0, {}, None)


def _inspected(connection: apsw.Connection) -> Inspection:
    """Raises apsw.Error."""
    faults = integrity(connection)
    schema: int = connection.pragma("user_version")
    if schema > NEWEST_SCHEMA:
        faults.append(
            f"it was written by a newer Petstore (schema {schema}, this one knows {NEWEST_SCHEMA}); upgrade Petstore"
        )
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if faults or not tables:
        return Inspection(faults or ["it has no tables"], schema, {}, None)
    rows = {t.name: connection.execute(f"SELECT count(*) FROM {t.name}").get for t in TABLES if t.name in tables}
    return Inspection([], schema, rows, connection.execute(_NEWEST).get)
