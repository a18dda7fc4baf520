"""Checks a SQLite file without changing anything: whether it is sound, the version of its schema, what is in it."""

import re
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from petstore.errors import OperatorError
from petstore.store.schema import OLDEST_SCHEMA, OWN_TABLES, TABLES, TABLES_OF_1_1, UNFINISHED_COPY, migrations
from petstore.store.sqlite.connection import BUSY_TIMEOUT, RESTORE, set_busy_timeout

_NEWEST = (
    "SELECT max(at) FROM (SELECT max(at) AS at FROM {audit} UNION ALL SELECT max(created) FROM idempotency"
    " UNION ALL SELECT max(created) FROM keys UNION ALL SELECT max(last_used) FROM keys)"
)


_OF_SQLITE = ("sqlite_sequence", "sqlite_stat1", "sqlite_stat4")
_BEFORE_PARENTHESIS = re.compile(r"(\w+|\W)\s*\(").findall
_OF_DEFINITIONS = {"CHECK", "IN", "KEY", "keys"}  # what our tables and indexes have before a parenthesis
_ID_MAX = 2**62  # no service gets so far: beyond it, a forged file would soon have no id left to give out


class FileReport(NamedTuple):
    faults: list[str]
    schema: int = 0
    rows: dict[str, int] = {}  # noqa: RUF012  # never written to
    newest: float | None = None  # the latest time that any row has, in Unix seconds


def check_file(path: Path) -> FileReport:
    """Whether or not a service runs on the file."""
    # Without a log beside it no process has the file open. `immutable` then keeps SQLite from making a log.
    log = path.with_name(path.name + "-wal")
    address = f"file:{quote(str(path.absolute()))}?mode=ro" + ("" if log.exists() else "&immutable=1")
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        with closing(apsw.Connection(address, flags=flags)) as connection:
            set_busy_timeout(connection, BUSY_TIMEOUT)
            connection.pragma("trusted_schema", "OFF")
            return _report(connection)
    except apsw.NotADBError:
        return FileReport([f"it is not a database; {RESTORE}"])
    except apsw.Error as error:
        return FileReport([f"it cannot be read: {error}"])


def _report(connection: apsw.Connection) -> FileReport:
    """Raises apsw.Error."""
    schema: int = connection.pragma("user_version")
    try:
        migrations("sqlite", schema)
    except OperatorError as error:
        return FileReport([f"it {error}"], schema)
    faults = _foreign(connection, schema) or _damage(connection)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if faults or not tables:
        return FileReport(faults or ["it has no tables"], schema)
    used_up = connection.execute("SELECT name FROM sqlite_sequence WHERE seq > ?", (_ID_MAX,)).fetchall()
    if used_up:
        return FileReport([f"the ids of {name} are used up; {RESTORE}" for (name,) in used_up], schema)
    unfinished = connection.execute("SELECT source FROM copying").fetchall() if "copying" in tables else []
    faults = [UNFINISHED_COPY.format(source) for (source,) in unfinished]
    rows = {t.name: connection.execute(f"SELECT count(*) FROM {t.name}").get for t in TABLES if t.name in tables}
    audit = "audit" if "audit" in tables else "deeds"  # of release 1.1
    return FileReport(faults, schema, rows, connection.execute(_NEWEST.format(audit=audit)).get)


def _foreign(connection: apsw.Connection, schema: int) -> list[str]:
    """What no Petstore has made. It could run code in the middle of our statements, or hide what they change."""
    old = schema == OLDEST_SCHEMA
    kinds = {"table", "index"} | ({"trigger"} if old else set())  # an upgrade drops the triggers unseen
    names = set(TABLES_OF_1_1 if old else (*(table.name for table in TABLES), *OWN_TABLES))
    found = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    return [
        f"it has the {kind} {name!r}, which Petstore has not made; remove it"
        for kind, name, sql in found
        if kind not in kinds
        or (kind == "table" and name not in names and name not in _OF_SQLITE)
        or str(sql).upper().startswith("CREATE VIRTUAL")
        or _calls_function(str(sql))
    ]


def _calls_function(sql: str) -> bool:
    """In a constraint, a default or an index: each write would run it, and it can take any time and memory."""
    return not _OF_DEFINITIONS.issuperset(_BEFORE_PARENTHESIS(sql.partition("(")[2]))


def _damage(connection: apsw.Connection) -> list[str]:
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
        found += [
            f"a row of {row[0]} refers to a missing row" for row in connection.execute("PRAGMA foreign_key_check")
        ]
    except apsw.CorruptError as error:
        found = [str(error)]
    return [f"{text}; {RESTORE}" for text in found if text != "ok"]
