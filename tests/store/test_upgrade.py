"""Data of release 1.1, opened with the present code: everything is there, and refused is what cannot be upgraded."""

import asyncio
import contextlib
import multiprocessing
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw
import asyncpg
import httpx
import pytest

from harness.backends import Postgres, free_port, shared
from harness.commands import Commands
from harness.served import serve_fails_in_one_line
from harness.servers import Server
from harness.stores import ENTRY, StorePlace
from petstore.backends import Backends
from petstore.data_dir import shared_lock
from petstore.errors import OperatorError, Unavailable
from petstore.keys import ENVIRONMENTS, Environment
from petstore.pets import NewPet
from petstore.store.postgres import migrations as postgres_migrations
from petstore.store.schema import COUNTERS, NEWEST_SCHEMA, OLDEST_SCHEMA, TABLES, Row
from petstore.store.schema import migrations as needed_migrations
from petstore.store.sqlite import connection as sqlite_connection
from petstore.store.sqlite.connection import connect, migrate
from petstore.store.sqlite.doctor import check_file
from petstore.usage import DAY
from tests.release_1_1 import NOW, RELEASE, ROWS, SECRETS, load_postgres, load_redis, pet_ids, unpack

T = TypeVar("T")
OLDER = RELEASE.parent / "1.0.0"


class Installation(NamedTuple):
    backend: str  # whose rows the data are
    server: Server
    restored: bool = False

    def act(self, work: Callable[[Backends], Awaitable[T]]) -> T:
        return self.server.act(work)


def embedded(data: Path) -> Installation:
    return Installation("sqlite", Server(unpack("data.zip", data)))


def restored(data: Path) -> Installation:
    server = Server(data)
    Commands(server).text("restore", str(RELEASE / "backup.zip"))
    return Installation("sqlite", server, restored=True)


def cluster(data: Path) -> Installation:
    server = Server(unpack("node.zip", data))
    server.store, server.gate = load_postgres(), load_redis()
    return Installation("postgres", server)


KINDS = [embedded, restored, cluster]


@pytest.fixture(params=KINDS, ids=["data", "backup", "cluster"])
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Installation:
    made: Installation = request.param(tmp_path / "data")
    return made


# Every row


def row_of_json(row: list[Any]) -> Row:
    hexadecimal = "hex:"
    return tuple(
        bytes.fromhex(cell.removeprefix(hexadecimal))
        if isinstance(cell, str) and cell.startswith(hexadecimal)
        else cell
        for cell in row
    )


def expected_rows(backend: str, environment: Environment) -> dict[str, list[Row]]:
    """By table of the present schema, made from the rows of the release."""

    def old(table: str) -> list[Row]:
        return [row_of_json(row) for row in ROWS[backend][f"{environment} {table}"]]

    imports = old("imports")
    moving = {row[0]: row[6] for row in imports if row[8] == "moving"}
    loaded = {row[0] for row in imports if row[8] in ("loading", "discarded")}
    moved = [
        (moving[import_id] + place, name, category, status)
        for import_id, status, place, name, category in old("import_rows")
        if import_id in moving
    ]
    animals = sorted(old("pets") + moved)
    changed = {row[0]: row[1:3] for row in old("changed_pets")}
    first_values = {row[0]: row[1:3] for row in animals} | changed
    suspended: dict[str, float] = dict(map(tuple, old("suspensions")))
    roles: dict[str, str] = dict(map(tuple, old("operator_roles")))

    by_operation = old("usage_by_operation")
    parts: Counter[Row] = Counter()
    for seconds, start, key_id, _, response, count in by_operation:
        parts[seconds, start, key_id, response] += count
    rest = [
        (seconds, start, key_id, "", response, count - parts[seconds, start, key_id, response])
        for seconds, table in ((60, "usage_minutes"), (3600, "usage"), (86_400, "usage_days"))
        for key_id, start, response, count in old(table)
        if count != parts[seconds, start, key_id, response]
    ]
    if backend == "sqlite":
        last = {"audit" if name == "deeds" else name: number for name, number in old("sqlite_sequence")}
    else:
        last = {"audit": old("deed_ids")[0][0], "pets": old("pet_ids")[0][0]}
    return {
        "pets": [(*row, int(row[0] in changed)) for row in animals],
        "keys": [(*row, suspended.get(row[0])) for row in old("keys")],
        "secrets": old("secrets"),
        "idempotency": [(*row[:4], *first_values[row[3]], *row[4:]) for row in old("idempotency")],
        "imports": [
            (*row[:6], "done" if row[8] == "moving" else row[8], "", row[9]) for row in imports if row[0] not in loaded
        ],
        "import_chunks": [(row[0], 0, row[6], row[5]) for row in imports if row[0] not in loaded],
        "audit": [(*row, None, None, None) for row in old("deeds")],
        "usage": sorted(by_operation + rest),
        "usage_totals": old("traffic"),
        "counted_admissions": old("counted_admissions"),
        "recent_errors": old("recent_errors"),
        "operators": [(*row, roles[row[0]]) for row in old("operators")],
        "counters": sorted(last.items()),
    }


async def found_rows(backends: Backends, environment: Environment) -> dict[str, list[Row]]:
    transfer = backends.stores[environment].transfer
    return {table.name: await transfer.rows(table, None, 10**6) for table in (*TABLES, COUNTERS)}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_row_is_in_its_new_place(released: Installation, environment: Environment) -> None:
    found = released.act(lambda backends: found_rows(backends, environment))
    if released.restored:
        *found["audit"], entry = found["audit"]
        assert entry[3] == "restore"
        found["counters"] = [(name, last - (name == "audit")) for name, last in found["counters"]]
    expected = expected_rows(released.backend, environment)
    assert found.keys() == expected.keys()
    for table, rows in expected.items():
        assert found[table] == rows, table
        assert rows or environment == "staging", table


def test_upgraded_data_take_new_rows(released: Installation) -> None:
    async def work(backends: Backends) -> None:
        for environment, store in backends.stores.items():
            (last,) = [row[1] for row in expected_rows(released.backend, environment)["counters"] if row[0] == "pets"]
            assert (await store.pets.add(NewPet("New", 1), NOW)).pet.id == last + 1
            await store.audit.record(ENTRY)
            ((newest, entry),) = (await store.audit.find(limit=1)).entries
            assert newest > len(ROWS[released.backend][f"{environment} deeds"]) and entry == ENTRY

    released.act(work)


def test_imports_of_the_release_can_be_undone(released: Installation) -> None:
    """Also the one that the release was still moving, and the one that it was still undoing."""
    known = {each["name"]: each for each in SECRETS["imports"][released.backend]}

    async def work(backends: Backends) -> None:
        for name in ("moving.csv", "winter.csv"):
            each = known[name]
            store = backends.stores[each["environment"]]
            ids = set(range(each["first_id"], each["last_id"] + 1))
            before = pet_ids(released.backend, store.environment)
            assert await store.imports.undo(each["id"], ENTRY)
            left = {pet.id for pet in (await store.pets.page(after=0, limit=10**6, status=None)).pets}
            assert left == before - (ids - set(each["changed_by_operator"]))
            done = await store.imports.get(each["id"], NOW)
            assert done is not None and done.state == "undone"

    released.act(work)


# A service on upgraded data


@contextlib.contextmanager
def serving_at(installation: Installation, now: float) -> Iterator[Server]:
    server = installation.server
    server.move_clock(now - time.time())
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_secret_gets_the_answer_of_the_release(released: Installation, method: str) -> None:
    with serving_at(released, NOW) as server:
        for name, each in SECRETS["secrets"].items():
            headers = {"Authorization": f"Bearer {each['secret']}"}
            body = {"name": "Rex", "categoryId": 1} if method == "POST" else None
            answer = httpx.request(method, server.url("/pets", each["environment"]), headers=headers, json=body)
            code = answer.json()["code"] if answer.status_code >= 400 else None
            expected = each["answers"][f"{method} /pets"]
            if released.restored and expected[0] == 429:  # a restore begins with a new gate
                expected = [200 if method == "GET" else 201, None]
            assert [answer.status_code, code] == expected, name


def test_creates_of_the_release_are_replayed(released: Installation) -> None:
    replays = SECRETS["replays"][released.backend]
    with serving_at(released, NOW) as server:
        for each in replays:
            key = SECRETS["secrets"][each["key"]]
            headers = {
                "Authorization": f"Bearer {key['secret']}",
                "Idempotency-Key": each["token"],
                "Content-Type": "application/json",
            }
            url = server.url("/pets", key["environment"])
            answer = httpx.post(url, headers=headers, content=each["body"])
            assert (answer.status_code, answer.json()) == (201, each["answer"])
    assert replays


def test_uncollected_admissions_end_in_the_usage_once(released: Installation) -> None:
    for _ in range(2):
        with serving_at(released, NOW) as server:
            assert server.stop() == 0
    expected: Counter[Row] = Counter()
    for environment in ENVIRONMENTS:
        for seconds, _, key_id, operation, _, count in expected_rows(released.backend, environment)["usage"]:
            if seconds == DAY:
                expected[environment, key_id, operation] += count
    key_ids = {each["key"]: each["key_id"] for each in SECRETS["secrets"].values()}
    for each in SECRETS["admissions"][released.backend]:
        if each["uncollected"] and not released.restored:  # the gate has them, and a restore begins with a new one
            expected[each["environment"], key_ids[each["key"]], each["operation"]] += each["uncollected"]

    async def usage(backends: Backends) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for environment in ENVIRONMENTS:
            rows = (await found_rows(backends, environment))["usage"]
            for seconds, _, key_id, operation, _, count in rows:
                if seconds == DAY:
                    found[environment, key_id, operation] += count
        return found

    assert released.act(usage) == expected


# The schema


def sqlite_schema(path: Path) -> dict[str, Any]:
    """Columns, indexes, constraints and options of every table."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:

        def rows(sql: str) -> list[Any]:
            return connection.execute(sql).fetchall()

        def indexes(table: str) -> list[Any]:
            return rows(f"PRAGMA index_list({table})")

        def constraints(table: str) -> list[str]:
            (text,) = rows(f"SELECT sql FROM sqlite_schema WHERE name = '{table}'")[0]
            return re.findall(r"CHECK \(.*?\)\)|AUTOINCREMENT|STRICT|WITHOUT ROWID", text)

        return {
            table: [
                rows(f"PRAGMA table_xinfo({table})"),
                rows(f"PRAGMA foreign_key_list({table})"),
                sorted(
                    (row[1:], rows(f"PRAGMA index_xinfo('{row[1]}')")) for row in rows(f"PRAGMA index_list({table})")
                ),
                constraints(table),
            ]
            for (table,) in rows("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        } | {"others": rows("SELECT type, name FROM sqlite_schema WHERE type NOT IN ('table', 'index')")}


POSTGRES_SCHEMA = (
    "SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,"
    " a.attcollation::regcollation::text, pg_get_expr(d.adbin, d.adrelid)"
    " FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
    " LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum"
    " WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'r' ORDER BY 1, 2",
    "SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = $1::regnamespace AND contype <> 'n' ORDER BY 1, 2",  # NOT NULL is in the columns
    "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = $1 ORDER BY 1, 2",
    "SELECT s.relname, d.refobjid::regclass::text, d.refobjsubid FROM pg_class AS s"
    " LEFT JOIN pg_depend AS d ON d.objid = s.oid AND d.deptype = 'a'"
    " WHERE s.relnamespace = $1::regnamespace AND s.relkind = 'S' ORDER BY 1",
    "SELECT relname, relkind FROM pg_class WHERE relnamespace = $1::regnamespace ORDER BY 1",
    "SELECT proname FROM pg_proc WHERE pronamespace = $1::regnamespace",
    "SELECT tgname FROM pg_trigger JOIN pg_class AS c ON c.oid = tgrelid"
    " WHERE c.relnamespace = $1::regnamespace AND NOT tgisinternal",
)


async def postgres_schema(url: str, schema: str) -> list[list[Row]]:
    connection = await asyncpg.connect(url)
    try:
        return [[tuple(row) for row in await connection.fetch(sql, schema)] for sql in POSTGRES_SCHEMA]
    finally:
        await connection.close()


def ping(installation: Installation) -> None:
    async def all_stores(backends: Backends) -> None:
        for store in backends.stores.values():
            await store.transfer.rows(COUNTERS, None, 1)  # waits for the migrations without a timeout

    installation.act(all_stores)


def test_upgraded_and_fresh_files_have_one_schema(tmp_path: Path) -> None:
    upgraded, fresh = embedded(tmp_path / "data"), Server(tmp_path / "fresh")
    ping(upgraded)
    fresh.create()
    for environment in ENVIRONMENTS:
        path = upgraded.server.data / f"{environment}.db"
        assert sqlite_schema(path) == sqlite_schema(fresh.data / f"{environment}.db")
        assert check_file(path).faults == [] and check_file(path).schema == NEWEST_SCHEMA


def test_upgraded_and_fresh_databases_have_one_schema(tmp_path: Path) -> None:
    upgraded, fresh = cluster(tmp_path / "data"), StorePlace(tmp_path, shared(Postgres).url())
    ping(upgraded)
    fresh.use(lambda store: store.database.ping())
    assert upgraded.server.store is not None and fresh.url is not None
    for environment in ENVIRONMENTS:
        schema = f"petstore_{environment}"
        found = asyncio.run(postgres_schema(upgraded.server.store, schema))
        assert found == asyncio.run(postgres_schema(fresh.url, schema))
        assert all(found[:5]) and found[5:] == [[], []]


# Interrupted


def content(data: Path) -> dict[str, list[Any]]:
    """Every row of every table of both files, and their versions."""
    found: dict[str, list[Any]] = {}
    for environment in ENVIRONMENTS:
        with contextlib.closing(apsw.Connection(str(data / f"{environment}.db"))) as connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
                found[f"{environment} {table}"] = connection.execute(f"SELECT * FROM {table}").fetchall()
            found[f"{environment} version"] = [connection.pragma("user_version")]
    return found


def killed_at(data: Path, statement: int) -> None:
    """To be called in a process of its own, which a signal ends at a statement of the upgrade."""

    def watched(path: Path) -> apsw.Connection:
        connection, count = connect(path), 0

        def before(*_: object) -> bool:
            nonlocal count
            count += 1
            if count == statement:
                os.kill(os.getpid(), signal.SIGKILL)
            return True

        connection.exec_trace = before
        return connection

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite_connection, "connect", watched)
        migrate(data / "live.db")


@pytest.mark.parametrize("statement", [2, 5, 9, 20, 40, 60])
def test_a_kill_in_the_middle_leaves_a_file_as_before(tmp_path: Path, statement: int) -> None:
    upgraded = embedded(tmp_path / "data")
    before = content(upgraded.server.data)
    process = multiprocessing.get_context("fork").Process(target=killed_at, args=(upgraded.server.data, statement))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert content(upgraded.server.data) == before
    test_every_row_is_in_its_new_place(upgraded, "live")


def test_a_full_disk_leaves_a_file_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upgraded = embedded(tmp_path / "data")
    before = content(upgraded.server.data)

    def full(path: Path) -> apsw.Connection:
        connection = connect(path)
        connection.pragma("max_page_count", connection.pragma("page_count"))
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_connection, "connect", full)
        assert "full" in Commands(upgraded.server).fails_in_one_line("pets", "list")
    assert content(upgraded.server.data) == before
    test_every_row_is_in_its_new_place(upgraded, "live")


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_connection_that_ends_in_the_middle_leaves_a_database_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Environment
) -> None:
    """In staging: live is upgraded already."""
    upgraded = cluster(tmp_path / "data")
    assert upgraded.server.store is not None
    before = asyncio.run(postgres_schema(upgraded.server.store, f"petstore_{environment}"))
    *earlier, last = needed_migrations("postgres", OLDEST_SCHEMA)
    ending = tmp_path / "ending.sql"
    ending.write_text(
        f"{last.file.read_text()}; SELECT pg_terminate_backend(pg_backend_pid())"
        f" WHERE current_schema() = 'petstore_{environment}'"
    )
    with monkeypatch.context() as patched:
        patched.setattr(postgres_migrations, "migrations", lambda *_: [*earlier, last._replace(file=ending)])
        with pytest.raises(Unavailable):
            ping(upgraded)
    assert asyncio.run(postgres_schema(upgraded.server.store, f"petstore_{environment}")) == before
    for each in ENVIRONMENTS:
        test_every_row_is_in_its_new_place(upgraded, each)


# Refused


def test_no_upgrade_while_a_process_works_on_the_data_directory(tmp_path: Path) -> None:
    upgraded = embedded(tmp_path / "data")
    before = content(upgraded.server.data)
    with shared_lock(upgraded.server.data):  # as every process of the release has it
        for said in (
            Commands(upgraded.server).fails_in_one_line("pets", "list"),
            serve_fails_in_one_line(["--data", str(upgraded.server.data), "--port", str(free_port())]),
        ):
            assert "was written by Petstore 1.1" in said and "stop it, then start this version" in said
    assert content(upgraded.server.data) == before


def test_no_upgrade_while_a_node_is_connected_to_the_database(tmp_path: Path) -> None:
    upgraded = cluster(tmp_path / "data")
    store, gate = upgraded.server.store, upgraded.server.gate
    assert store is not None and gate is not None

    async def work() -> None:
        node = await asyncpg.connect(store, server_settings={"application_name": "petstore"})
        words = ["--data", str(upgraded.server.data), "--port", str(free_port()), "--store", store, "--gate", gate]
        for said in (
            await asyncio.to_thread(Commands(upgraded.server).fails_in_one_line, "pets", "list"),
            await asyncio.to_thread(serve_fails_in_one_line, words),
        ):
            assert "Petstore 1.1 still uses the database" in said and "stop every node of it" in said
        assert await node.fetchval("SELECT max(number) FROM petstore_live.migrations") == OLDEST_SCHEMA
        await node.close()

    asyncio.run(work())


# What a node of the release executes when it adds and counts.
STATEMENTS = [
    "INSERT INTO pets (id, name, category_id, status) SELECT nextval('pet_ids'), 'Old', 1, 'sold'",
    "INSERT INTO idempotency AS known (key_id, token, body_digest, pet_id, status, created)"
    " SELECT 'key_a', 't', ''::bytea, 1, 'sold', 1.0",
    "INSERT INTO import_rows SELECT 'imp_x', 'sold', 1, 'x', 1",
    "INSERT INTO deeds (at, actor, action, subject, detail) VALUES (1.0, 'a', 'b', 'c', 'd')",
    "INSERT INTO usage AS u (key_id, hour, answer, count) VALUES ('key_z', 0, 'ok', 1)",
    "INSERT INTO traffic AS t (step, start, answer, count) VALUES (60, 0, 'ok', 1)",
    "INSERT INTO suspensions VALUES ('key_z', 1.0)",
]


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.split()[2])
def test_a_node_of_the_release_that_was_overlooked_fails_instead_of_adding(tmp_path: Path, statement: str) -> None:
    upgraded = cluster(tmp_path / "data")
    place = StorePlace(tmp_path, upgraded.server.store)
    before = place.by_hand("SELECT last_value FROM pet_ids"), place.by_hand("SELECT count(*) FROM pets")
    ping(upgraded)
    wrong = (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.NotNullViolationError)
    with pytest.raises(wrong):
        place.by_hand(statement)
    assert before[0] == place.by_hand("SELECT last_value FROM pets_id_seq")


def test_data_of_1_0_are_refused(tmp_path: Path) -> None:
    data = unpack("data.zip", tmp_path / "data", OLDER)
    before, gate = content(data), (data / "gate.mdb").read_bytes()
    assert "upgrade to 1.1 first" in Commands(Server(data)).fails_in_one_line("pets", "list")
    assert "upgrade to 1.1 first" in serve_fails_in_one_line(["--data", str(data), "--port", str(free_port())])
    assert (content(data), (data / "gate.mdb").read_bytes()) == (before, gate)


@pytest.mark.parametrize("words", [["restore"], ["backup", "--verify"]], ids=" ".join)
def test_a_backup_of_1_0_is_refused(tmp_path: Path, words: list[str]) -> None:
    commands = Commands(Server(tmp_path / "data"))
    assert "upgrade to 1.1 first" in commands.fails_in_one_line(*words, str(OLDER / "backup.zip"))


def test_a_database_of_1_0_is_refused(tmp_path: Path) -> None:
    url = load_postgres(OLDER)
    with pytest.raises(OperatorError, match=r"upgrade to 1\.1 first"):
        StorePlace(tmp_path, url).use(lambda store: store.database.ping())
