"""Schemas on both backends: the SQL file and the tables that the code names, migrations, and unknown data."""

import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import asyncpg
import httpx
import pytest

from harness.served import wait_for
from harness.servers import Server, started
from harness.stores import NOW, StorePlace
from petstore.errors import OperatorError
from petstore.pets import NewPet
from petstore.store import Store, StorePolicy
from petstore.store.postgres import migrations as postgres
from petstore.store.schema import (
    NEW_PET_FIELDS,
    NEWEST_SCHEMA,
    OWN_TABLES,
    TABLES,
    TYPES,
    Migration,
)
from petstore.store.sqlite import migrations as sqlite
from petstore.store.sqlite.connection import connect

# A migration that the next release might contain. This version must still work after it.
NEXT = Migration(
    NEWEST_SCHEMA + 1, "CREATE TABLE births (pet_id bigint PRIMARY KEY); ALTER TABLE pets ADD COLUMN chip integer"
)
# Statements that never finish, so that the migration can be killed while it runs.
ENDLESS = {
    "sqlite": "INSERT INTO births WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    "postgres": "SELECT pg_sleep(600)",
}
MIGRATING = (
    "FROM pg_stat_activity WHERE query LIKE '%CREATE TABLE births%pg_sleep(600)' AND pid <> pg_backend_pid()"
    " AND datname = current_database() AND state = 'active'"
)


@pytest.fixture
def with_an_animal(store_at: StorePlace) -> StorePlace:
    store_at.use(lambda store: store.pets.add(NewPet("Rex", 1), NOW))
    return store_at


def migrate(place: StorePlace, *more: Migration) -> None:
    """Migrates the live environment as the start of a version with these additional migrations would."""
    if place.url is None:
        sqlite.migrate(place.data / "live.db", [*sqlite.KNOWN, *more])
        return

    async def on_postgres() -> None:
        connection = await asyncpg.connect(place.url)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(connection.close)
            await stack.enter_async_context(connection.transaction())
            await postgres.migrate(connection, "petstore_live", [*postgres.KNOWN, *more])

    asyncio.run(on_postgres())


def version(place: StorePlace) -> int:
    sql = "PRAGMA user_version" if place.url is None else "SELECT version FROM petstore_live.format"
    found: int = place.by_hand(sql)[0][0]
    return found


def columns_of(place: StorePlace, table: str) -> list[str]:
    sql = (
        f"SELECT name FROM pragma_table_info('{table}') ORDER BY cid"
        if place.url is None
        else f"SELECT column_name FROM information_schema.columns WHERE table_schema = 'petstore_live'"
        f" AND table_name = '{table}' ORDER BY ordinal_position"
    )
    return [row[0] for row in place.by_hand(sql)]


def tables_of(place: StorePlace) -> set[str]:
    sql = (
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        if place.url is None
        else "SELECT tablename FROM pg_tables WHERE schemaname = 'petstore_live'"
    )
    return {row[0] for row in place.by_hand(sql)}


async def add_another(store: Store) -> int:
    return (await store.pets.add(NewPet("Ada", 2), NOW)).pet.id


# The schema


def test_the_sql_file_has_the_tables_and_columns_that_the_code_names(store_at: StorePlace) -> None:
    without_type = set(NEW_PET_FIELDS) - TYPES.keys()
    assert without_type == set(), "store/schema.py: TYPES lacks the PostgreSQL types of these columns"
    migrate(store_at)
    own = {*OWN_TABLES, *(("format",) if store_at.url else ())}
    assert tables_of(store_at) == {table.name for table in TABLES} | own
    for table in TABLES:
        in_sql, in_code = set(columns_of(store_at, table.name)), set(table.columns)
        assert in_code - in_sql == set(), f"store/migrations: the table {table.name} lacks these columns"
        assert in_sql - in_code == set(), f"store/schema.py: {table.name} lacks these columns of store/migrations"


def test_each_table_has_a_comment() -> None:
    lines = sqlite.KNOWN[0].sql.splitlines()
    tables = [number for number, line in enumerate(lines) if line.startswith("CREATE TABLE")]
    assert tables and [lines[number] for number in tables if not lines[number - 1].startswith("-- ")] == []


def test_schemas_are_numbered_without_gaps() -> None:
    assert [each.version for each in sqlite.KNOWN] == list(range(1, NEWEST_SCHEMA + 1))


# Both backends

# How SQLite spells a PostgreSQL type. No other difference between columns is allowed.
SPELLINGS = {"bigint": "INTEGER", "integer": "INT", "double precision": "REAL", "bytea": "BLOB", "text": "TEXT"}
ONLY_IN_POSTGRES = {"format"}  # SQLite stores the version in the file's header
# Text columns in an index whose order does not matter, because they are only compared for equality.
UNORDERED = {("pets", "status")}

POSTGRES_COLUMNS = """
SELECT t.relname, a.attname, format_type(a.atttypid, NULL), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
    array_position(k.conkey, a.attnum)
FROM pg_attribute AS a JOIN pg_class AS t ON t.oid = a.attrelid AND t.relkind = 'r'
    LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
    LEFT JOIN pg_constraint AS k ON k.conrelid = t.oid AND k.contype = 'p'
WHERE t.relnamespace = 'petstore_live'::regnamespace AND a.attnum > 0
"""
SQLITE_COLUMNS = """
SELECT t.name, c.name, c.type, c."notnull" OR c.pk > 0, c.dflt_value, nullif(c.pk, 0)
FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'
"""
# The table, whether the index is unique, whether it is partial, and its columns.
POSTGRES_INDEXES = """
SELECT t.relname, i.indisunique, i.indpred IS NOT NULL,
    (SELECT string_agg(a.attname, ' ' ORDER BY n) FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n)
        JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (t.oid, k.attnum))
FROM pg_index AS i JOIN pg_class AS t ON t.oid = i.indrelid
WHERE t.relnamespace = 'petstore_live'::regnamespace AND NOT i.indisprimary
"""
SQLITE_INDEXES = """
SELECT t.name, i."unique", i.partial, (SELECT group_concat(name, ' ') FROM pragma_index_info(i.name))
FROM sqlite_schema AS t JOIN pragma_index_list(t.name) AS i WHERE t.type = 'table' AND i.origin <> 'pk'
"""
POSTGRES_REFERENCES = """
SELECT conrelid::regclass::text, a.attname, confrelid::regclass::text FROM pg_constraint AS c
    JOIN pg_attribute AS a ON (a.attrelid, a.attnum) = (c.conrelid, c.conkey[1])
WHERE connamespace = 'petstore_live'::regnamespace AND contype = 'f'
"""
SQLITE_REFERENCES = """
SELECT t.name, f."from", f."table" FROM sqlite_schema AS t JOIN pragma_foreign_key_list(t.name) AS f
"""


@pytest.fixture
def both(place: StorePlace, tmp_path_factory: pytest.TempPathFactory) -> tuple[StorePlace, StorePlace]:
    """Returns a store in PostgreSQL and one in SQLite, each with the newest schema."""
    other = StorePlace(tmp_path_factory.mktemp("sqlite"))
    for each in (place, other):
        migrate(each)
    return place, other


def rows(place: StorePlace, sql: str) -> set[tuple[object, ...]]:
    return {tuple(row) for row in place.by_hand(sql) if row[0] not in ONLY_IN_POSTGRES}


def test_both_backends_have_the_same_columns(both: tuple[StorePlace, StorePlace]) -> None:
    in_postgres, in_sqlite = (
        rows(place, sql) for place, sql in zip(both, (POSTGRES_COLUMNS, SQLITE_COLUMNS), strict=True)
    )
    assert {(table, column, SPELLINGS[str(kind)], *rest) for table, column, kind, *rest in in_postgres} == in_sqlite


def test_both_backends_have_the_same_indexes_and_references(both: tuple[StorePlace, StorePlace]) -> None:
    for pair in ((POSTGRES_INDEXES, SQLITE_INDEXES), (POSTGRES_REFERENCES, SQLITE_REFERENCES)):
        in_postgres, in_sqlite = (rows(place, sql) for place, sql in zip(both, pair, strict=True))
        assert in_postgres == in_sqlite and in_sqlite


def test_sqlite_refuses_values_of_another_type_as_postgres_does(tmp_path: Path) -> None:
    place = StorePlace(tmp_path)
    migrate(place)
    lax = place.by_hand(
        "SELECT name FROM pragma_table_list WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND NOT strict"
    )
    assert lax == []


def test_keys_in_postgres_are_ordered_by_bytes_as_in_sqlite(place: StorePlace) -> None:
    migrate(place)
    ordered_by_language = place.by_hand(
        "SELECT DISTINCT t.relname, a.attname FROM pg_index AS i JOIN pg_class AS t ON t.oid = i.indrelid"
        " JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = ANY (i.indkey::int2[])"
        " WHERE t.relnamespace = 'petstore_live'::regnamespace AND a.attcollation = 'pg_catalog.default'::regcollation"
    )
    assert {tuple(row) for row in ordered_by_language} - UNORDERED == {("format", "product")}


# Migrations


def test_a_migration_keeps_the_data_and_happens_once(with_an_animal: StorePlace) -> None:
    migrate(with_an_animal, NEXT)
    assert version(with_an_animal) == NEXT.version
    assert with_an_animal.by_hand(f"SELECT name, chip FROM {'petstore_live.' if with_an_animal.url else ''}pets") == [
        ("Rex", None)
    ]
    migrate(with_an_animal, NEXT)  # would fail if it ran again, because the table exists
    assert version(with_an_animal) == NEXT.version


def test_nodes_that_migrate_at_once_migrate_once(with_an_animal: StorePlace) -> None:
    failures: list[Exception] = []
    together = threading.Barrier(4)

    def node() -> None:
        together.wait()
        try:
            migrate(with_an_animal, NEXT)
        except Exception as error:
            failures.append(error)

    nodes = [threading.Thread(target=node) for _ in range(4)]
    for each in nodes:
        each.start()
    for each in nodes:
        each.join()
    assert (failures, version(with_an_animal)) == ([], NEXT.version)


def test_a_migration_that_is_killed_leaves_the_former_schema(with_an_animal: StorePlace) -> None:
    backend = "postgres" if with_an_animal.url else "sqlite"
    endless = NEXT._replace(sql=f"{NEXT.sql}; {ENDLESS[backend]}")
    migrating = multiprocessing.get_context("spawn").Process(target=migrate, args=(with_an_animal, endless))
    migrating.start()
    try:
        assert wait_for(lambda: is_migrating(with_an_animal)), "the migration has not begun"
    finally:
        assert migrating.pid is not None
        os.kill(migrating.pid, signal.SIGKILL)
        migrating.join()
    if with_an_animal.url is not None:  # the server notices the lost client only when it replies
        with_an_animal.by_hand(f"SELECT pg_terminate_backend(pid) {MIGRATING}")
    assert wait_for(lambda: not is_migrating(with_an_animal))
    assert (version(with_an_animal), "births" in tables_of(with_an_animal)) == (NEWEST_SCHEMA, False)
    assert with_an_animal.use(add_another) == 2
    migrate(with_an_animal, NEXT)
    assert version(with_an_animal) == NEXT.version


def is_migrating(place: StorePlace) -> bool:
    if place.url is not None:
        return bool(place.by_hand(f"SELECT 1 {MIGRATING}"))
    with contextlib.closing(apsw.Connection(str(place.data / "live.db"))) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return True
    return False


@pytest.mark.parametrize("backends", ["own", "cluster"])
def test_a_service_keeps_serving_while_its_data_is_migrated(backends: str, tmp_path: Path) -> None:
    server = Server(tmp_path / "data", backends)  # type: ignore[arg-type]  # mypy sees a plain str
    key = server.key()
    place = StorePlace(server.data, server.store)
    with started(server), httpx.Client(headers=key.headers) as client:

        def create(name: str) -> int:
            answer = client.post(server.url("/pets"), json={"name": name, "categoryId": 1})
            assert answer.status_code == httpx.codes.CREATED, answer.text
            found: int = answer.json()["id"]
            return found

        before = create("before")
        migrate(place, NEXT)
        assert create("after") > before
        names = [pet["name"] for pet in client.get(server.url("/pets")).json()]
        assert names == ["before", "after"]


# Data that this version cannot use


def test_a_store_of_a_newer_petstore_is_refused(with_an_animal: StorePlace) -> None:
    migrate(with_an_animal, NEXT)
    with pytest.raises(OperatorError, match=f"written by a newer Petstore .schema {NEXT.version}"):
        with_an_animal.use(lambda store: store.database.ping())


def test_without_the_right_to_migrate_an_older_or_missing_schema_is_refused(with_an_animal: StorePlace) -> None:
    reading = StorePolicy(migrate=False)
    assert with_an_animal.use(lambda store: store.pets.get(1), policy=reading) is not None
    if with_an_animal.url is None:
        (with_an_animal.data / "staging.db").unlink()
    else:
        with_an_animal.by_hand("DROP SCHEMA petstore_staging CASCADE")
    with pytest.raises(OperatorError, match="`petstore serve` creates or migrates it"):
        with_an_animal.use(lambda store: store.database.ping(), policy=reading)
    assert not (with_an_animal.data / "staging.db").exists()


def development_build(path: Path) -> None:
    """Writes a file like a build before 1.0: with a schema number that 1.0 also uses, but no application id."""
    with contextlib.closing(connect(path)) as connection:
        connection.execute("CREATE TABLE pets (id INTEGER PRIMARY KEY); INSERT INTO pets VALUES (1)")
        connection.pragma("user_version", 1)


def another_program(path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('mine')")
        connection.pragma("application_id", 252006673)


def damaged(path: Path) -> None:
    path.write_bytes(b"not a database, and longer than the header of one" * 100)


def digests(directory: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(directory.iterdir()):
        yield path.name, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("write", [development_build, another_program, damaged])
def test_a_file_that_is_not_recognised_is_refused_and_stays_as_it_is(tmp_path: Path, write: object) -> None:
    server = Server(tmp_path)
    write(tmp_path / "live.db")  # type: ignore[operator]  # a function that takes a path
    before = list(digests(tmp_path))
    with pytest.raises(
        OperatorError, match=r"live\.db: (was not written by Petstore 1\.0 or later|is damaged)$|; restore a backup"
    ):
        server.act(lambda backends: backends.stores["live"].database.ping())
    assert list(digests(tmp_path)) == before


def test_a_schema_that_is_not_recognised_is_refused_and_stays_as_it_is(place: StorePlace) -> None:
    place.by_hand("CREATE SCHEMA petstore_live")
    place.by_hand("CREATE TABLE petstore_live.migrations (number int PRIMARY KEY)")
    place.by_hand("INSERT INTO petstore_live.migrations VALUES (1)")
    with pytest.raises(OperatorError, match=r"petstore_live was not written by Petstore 1\.0 or later"):
        place.use(lambda store: store.database.ping())
    assert tables_of(place) == {"migrations"}
    assert place.by_hand("SELECT nspname FROM pg_namespace WHERE nspname = 'petstore_staging'") == []


@pytest.mark.parametrize("content", [b"", b"wal"], ids=["empty file", "file without tables"])
def test_a_start_that_was_killed_leaves_a_directory_that_the_next_start_uses(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "live.db"
    path.touch()
    if content:
        connect(path).close()  # an empty database in WAL mode
    assert StorePlace(tmp_path).use(add_another) == 1
