"""Stores of release 1.0.0, opened with the present code: everything is there, and the old code could go on."""

import asyncio
import json
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from petstore.changes import Change
from petstore.keys import ENVIRONMENTS, Environment, digest_of
from petstore.operators import Operator
from petstore.pets import Added, IdempotencyKey, NewPet, Undone
from petstore.store import Store, StorePolicy, close_stores, open_stores
from petstore.store.schema import COUNTERS, TABLES, Row
from petstore.store.sqlite.connection import connect
from petstore.store.sqlite.doctor import NEWEST_SCHEMA
from petstore.usage import DAY, HOUR, OperationUsage, Usage
from tests.backends import Postgres, shared
from tests.commands import Commands
from tests.places import ENTRY, StorePlace, batches
from tests.servers import Server

RELEASE = Path(__file__).parent / "fixtures" / "1.0.0"
CREATED = 1_700_000_400  # when its rows were written
ROWS: dict[str, list[list[Any]]] = json.loads((RELEASE / "rows.json").read_text())


@pytest.fixture(params=["sqlite", "postgres"])
def released(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    """A store as the release has left it."""
    if request.param == "sqlite":
        with zipfile.ZipFile(RELEASE / "data.zip") as archive:
            archive.extractall(tmp_path)
        return StorePlace(tmp_path)
    url = shared(Postgres).url()
    asyncio.run(load((RELEASE / "postgres.sql").read_text(), url))
    return StorePlace(tmp_path, url)


async def load(script: str, url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(script)
    await connection.close()


def row_of_json(row: list[Any]) -> Row:
    hexadecimal = "hex:"
    return tuple(
        bytes.fromhex(cell.removeprefix(hexadecimal))
        if isinstance(cell, str) and cell.startswith(hexadecimal)
        else cell
        for cell in row
    )


async def on_commit(_: Change) -> None: ...


def test_every_row_is_still_there_after_the_upgrade(released: StorePlace) -> None:
    async def work() -> None:
        stores = open_stores(released.url, released.data, StorePolicy(), lambda _: on_commit)
        for environment, store in stores.items():
            for table in (*TABLES, COUNTERS):
                expected = [row_of_json(row) for row in ROWS.get(f"{environment} {table.name}", [])]
                assert await store.transfer.rows(table, None, 10**6) == expected, table.name
        await close_stores(stores.values())

    asyncio.run(work())
    assert {name.split()[0] for name in ROWS} == set(ENVIRONMENTS)


def test_upgraded_store_answers_as_before(released: StorePlace) -> None:
    async def work(store: Store) -> None:
        page = await store.pets.page(after=0, limit=100, status=None)
        assert [(pet.id, pet.name, pet.category_id, pet.status) for pet in page.pets] == [
            row_of_json(row) for row in ROWS["live pets"]
        ]
        first = await store.keys.find(digest_of("secret 1 of live"))
        assert first is not None and (first.expires, first.suspended) == (CREATED + 3600, None)
        revoked = await store.keys.find(digest_of("secret 4 of live"))
        assert revoked is not None and revoked.state(CREATED) == "revoked"
        assert await store.operators.all() == [Operator("ada", CREATED), Operator("bob", CREATED + 1, CREATED + 2)]
        assert await store.operators.find(digest_of("ada's token")) == Operator("ada", CREATED)
        day = CREATED // DAY * DAY
        usage = await store.usage.of_keys([first.id], DAY, [day])
        assert {row.response for row in usage} == {"ok", "refused", "client_error"}
        assert len((await store.audit.find()).entries) == len(ROWS["live deeds"])
        assert await store.imports.page() == []

    released.use(work)


def test_upgraded_store_repeats_creates_from_before_the_upgrade(released: StorePlace) -> None:
    async def work(store: Store) -> None:
        first_key = ROWS["live keys"][0][0]
        again = IdempotencyKey(first_key, "token-3", digest_of("body 3"))
        replay = await store.pets.add(NewPet("Pet 3", 3), CREATED + 60, again)
        assert replay.replayed and (replay.pet.id, replay.pet.name, replay.pet.status) == (4, "Pet 3", "available")
        await store.pets.remove([4], ENTRY)
        assert await store.pets.add(NewPet("Pet 3", 3), CREATED + 60, again) == Added(replay.pet, replayed=True)

    released.use(work)


def test_upgraded_store_takes_new_rows_of_every_kind(released: StorePlace) -> None:
    async def work(store: Store) -> None:
        newest = await newest_id(store)
        added = await store.pets.add(NewPet("New", 1), CREATED + 100)
        assert added.pet.id == newest + 1
        imported = await store.import_pets(batches("a", "b"), ENTRY)
        assert (imported.first_id, imported.last_id) == (newest + 2, newest + 3)
        assert await store.imports.undo(imported.id, ENTRY) == Undone(2, 0)
        key_id = ROWS["live keys"][0][0]
        hour = CREATED // HOUR * HOUR
        (before,) = [row for row in await store.usage.of_keys([key_id], HOUR, [hour]) if row.response == "ok"]
        await store.usage.add([OperationUsage(key_id, CREATED, "ok", 5, "getPet")], {})
        assert before._replace(requests=before.requests + 5) in await store.usage.of_keys([key_id], HOUR, [hour])
        assert await store.usage.of_keys([key_id], HOUR, [hour], "getPet") == [Usage(key_id, hour, "ok", 5)]

    released.use(work)


def test_backup_of_the_release_is_restored(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    Commands(server).text("restore", str(RELEASE / "backup.zip"))
    rows = server.act(lambda backends: backends.stores["live"].transfer.rows(TABLES[0], None, 10**6))
    assert rows == [row_of_json(row) for row in ROWS["live pets"]]


# What a process of the release writes and reads, which may still run while the store is upgraded.
SQLITE_STATEMENTS: list[tuple[str, tuple[Any, ...]]] = [
    ("INSERT INTO pets (name, category_id, status) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?)"
     " ORDER BY key", ('[["Old", 1, "sold"]]',)),
    ("UPDATE pets SET status = ? WHERE id = ?", ("sold", 1)),
    ("SELECT id, name, category_id, status FROM pets WHERE id > ? ORDER BY id LIMIT ?", (0, 21)),
    ("REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?, ?)", ("key_a", "t", b"", 1, "sold", 1.0)),
    ("SELECT i.key_id, i.token, i.body_digest, i.created, p.id, p.name, p.category_id, i.status FROM idempotency AS i"
     " JOIN pets AS p ON p.id = i.pet_id", ()),
    ("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
     ("key_z", "", "free", 60, 1000, "read", 1.0, None, None, None)),
    ("INSERT INTO secrets VALUES (?, ?, NULL)", (b"z", "key_z")),
    ("UPDATE secrets SET expires = min(coalesce(expires, ?1), ?1) WHERE key_id = ?2", (1.0, "key_z")),
    ("UPDATE keys SET revoked = ? WHERE id = ?", (1.0, "key_z")),
    ("UPDATE keys SET per_minute = ?, per_day = ? WHERE id = ?", (1, 2, "key_z")),
    ("SELECT k.id, k.name, k.plan, k.per_minute, k.per_day, k.scopes, k.created, k.expires, k.revoked, k.last_used,"
     " s.expires FROM secrets AS s JOIN keys AS k ON k.id = s.key_id WHERE s.digest = ?", (b"z",)),
    ("INSERT INTO operators VALUES (?1, ?2, ?3, NULL) ON CONFLICT (name) DO UPDATE SET digest = ?2, created = ?3,"
     " revoked = NULL WHERE revoked IS NOT NULL", ("old", b"old", 1.0)),
    ("INSERT INTO deeds (at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?)", (1.0, "a", "b", "c", "d")),
    *[
        (f"INSERT INTO {table} (key_id, {column}, answer, count) VALUES (?, ?, ?, ?)"
         " ON CONFLICT DO UPDATE SET count = count + excluded.count", ("key_z", 0, "ok", 1))
        for table, column in (("usage_minutes", "minute"), ("usage", "hour"), ("usage_days", "day"))
    ],
    ("INSERT INTO traffic VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
     (60, 0, "ok", 1)),
    ("INSERT INTO copying VALUES (?)", ("there",)),
]  # fmt: skip
POSTGRES_STATEMENTS = [
    "INSERT INTO pets (id, name, category_id, status) SELECT nextval('pet_ids'), 'Old', 1, 'sold'",
    "UPDATE pets SET status = 'sold' WHERE id = 1 RETURNING id, name, category_id, status",
    "INSERT INTO idempotency AS known (key_id, token, body_digest, pet_id, status, created)"
    " SELECT 'key_a', 't', ''::bytea, 1, 'sold', 1.0"
    " ON CONFLICT (key_id, token) DO UPDATE SET pet_id = excluded.pet_id",
    "INSERT INTO keys VALUES ('key_z', '', 'free', 60, 1000, 'read', 1.0, NULL, NULL, NULL)",
    "INSERT INTO secrets VALUES ('z'::bytea, 'key_z', NULL)",
    "INSERT INTO operators AS o VALUES ('old', 'old'::bytea, 1.0, NULL) ON CONFLICT (name) DO UPDATE"
    " SET revoked = NULL WHERE o.revoked IS NOT NULL RETURNING name",
    "INSERT INTO deeds (at, actor, action, subject, detail) VALUES (1.0, 'a', 'b', 'c', 'd')",
    *[
        f"INSERT INTO {table} AS u (key_id, {column}, answer, count) VALUES ('key_z', 0, 'ok', 1)"
        f" ON CONFLICT ({column}, key_id, answer) DO UPDATE SET count = u.count + excluded.count"
        for table, column in (("usage_minutes", "minute"), ("usage", "hour"), ("usage_days", "day"))
    ],
    "INSERT INTO traffic AS t (step, start, answer, count) VALUES (60, 0, 'ok', 1)"
    " ON CONFLICT (step, start, answer) DO UPDATE SET count = t.count + excluded.count",
    "INSERT INTO copying VALUES ('there')",
]


async def newest_id(store: Store) -> int:
    return (await store.pets.newest(limit=1)).pets[0].id


def execute_old_statements(place: StorePlace) -> None:
    if place.url is None:
        with closing(connect(place.data / "live.db")) as connection:
            for sql, values in SQLITE_STATEMENTS:
                connection.execute(sql, values).fetchall()
    else:
        for statement in POSTGRES_STATEMENTS:
            place.by_hand(statement)


def test_process_of_the_release_can_go_on_after_the_upgrade(released: StorePlace) -> None:
    before = released.use(newest_id)
    changes = released.use(lambda store: store.latest_change())
    execute_old_statements(released)

    async def work(store: Store) -> None:
        assert await newest_id(store) == before + 1
        assert await store.latest_change() > changes  # it has updated an animal
        assert (await store.pets.add(NewPet("New", 1), CREATED)).pet.id == before + 2
        key = await store.keys.get("key_z")
        assert key is not None and key.suspended is None
        operator = await store.operators.get("old")
        assert operator is not None and operator.role == "operator"

    released.use(work)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_upgraded_file_is_sound(tmp_path: Path, environment: Environment) -> None:
    with zipfile.ZipFile(RELEASE / "data.zip") as archive:
        archive.extractall(tmp_path)
    StorePlace(tmp_path).use(lambda store: store.database.ping())
    with closing(apsw.Connection(str(tmp_path / f"{environment}.db"))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.pragma("user_version") == NEWEST_SCHEMA
