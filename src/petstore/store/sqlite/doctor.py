"""Checks a SQLite file without changing anything. Reports damage, the schema version and the number of rows."""

from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple

import apsw

from petstore.errors import OperatorError
from petstore.store.schema import TABLES, pending
from petstore.store.sqlite.connection import connect_to_examine
from petstore.store.sqlite.migrations import KNOWN, RESTORE, schema_version

_NEWEST = (
    "SELECT max(at) FROM (SELECT max(at) AS at FROM audit UNION ALL SELECT max(created) FROM idempotency"
    " UNION ALL SELECT max(created) FROM keys UNION ALL SELECT max(last_used) FROM keys)"
)
_ID_MAX = 2**62  # no service ever assigns this many ids, but a forged file could contain a higher last id

Definitions = dict[tuple[str, str], str]  # the SQL for each table and index, keyed by kind and name


class FileReport(NamedTuple):
    faults: list[str]
    schema: int = 0
    rows: dict[str, int] = {}  # noqa: RUF012  # never modified
    newest: float | None = None  # the latest time recorded in the file, in Unix seconds


def check_database_file(path: Path) -> FileReport:
    """Checks a file. Can be called while a service has the file open."""
    try:
        with closing(connect_to_examine(path)) as connection:
            return _report(connection)
    except apsw.NotADBError:
        return FileReport([f"it is not a database; {RESTORE}"])
    except apsw.Error as error:
        return FileReport([f"it cannot be read: {error}"])


def _report(connection: apsw.Connection) -> FileReport:
    """Checks an open file. Raises apsw.Error if the file cannot be read."""
    version = 0
    try:
        version = schema_version(connection)
        pending(KNOWN, version)
    except OperatorError as error:
        return FileReport([f"it {error}"], version)
    if version == 0:
        return FileReport(["it has no tables"])
    faults = _altered(connection, version) or _damage(connection)
    if faults:
        return FileReport(faults, version)
    used_up = connection.execute("SELECT name FROM sqlite_sequence WHERE seq > ?", (_ID_MAX,)).fetchall()
    if used_up:
        return FileReport([f"the ids of {name} are used up; {RESTORE}" for (name,) in used_up], version)
    there = {name for _, name in _definitions(connection)}
    rows = {t.name: connection.execute(f"SELECT count(*) FROM {t.name}").get for t in TABLES if t.name in there}
    return FileReport([], version, rows, connection.execute(_NEWEST).get)


def _altered(connection: apsw.Connection, version: int) -> list[str]:
    """Returns the differences between the file's schema and the schema of a new file with the same version.

    A forged file could contain triggers or functions that our statements would run. A missing constraint could cause
    acknowledged animals to be lost.
    """
    expected, found = _definitions_of(version), _definitions(connection)
    faults = []
    for kind, name in sorted(expected.keys() | found.keys()):
        if (kind, name) not in expected:
            faults.append(f"the {kind} {name!r} does not belong to Petstore's schema")
        elif (kind, name) not in found:
            faults.append(f"the {kind} {name!r} is missing")
        elif expected[kind, name] != found[kind, name]:
            faults.append(f"the {kind} {name!r} differs from Petstore's schema")
    return faults


def _definitions(connection: apsw.Connection) -> Definitions:
    rows = connection.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    # Ignore SQLite's own tables, such as the statistics written by ANALYZE.
    return {
        (str(kind), str(name)): f"{table} {sql}"
        for kind, name, table, sql in rows
        if not (kind == "table" and str(name).startswith("sqlite_"))
    }


@cache
def _definitions_of(version: int) -> Definitions:
    with closing(apsw.Connection(":memory:")) as connection:
        for migration in KNOWN:
            if migration.version <= version:
                connection.execute(migration.sql)
        return _definitions(connection)


def _damage(connection: apsw.Connection) -> list[str]:
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
        found += [
            f"a row of {row[0]} refers to a missing row" for row in connection.execute("PRAGMA foreign_key_check")
        ]
    except apsw.CorruptError as error:
        found = [str(error)]
    return [f"{text}; {RESTORE}" for text in found if text != "ok"]
