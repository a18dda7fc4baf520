"""Rows on their way to another store, on every backend."""

import asyncio

import pytest

from harness.stores import NOW, REFUSED_ROW, StorePlace
from petstore.changes import Change
from petstore.keys import new_key
from petstore.pets import NewPet
from petstore.store import Store
from petstore.store.schema import COUNTERS, OWN_TABLES, TABLES, Row, Table, key_row


def table(name: str) -> Table:
    return next(table for table in TABLES if table.name == name)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("pets", [(number, f"Pet {number}", -number, "sold", 0) for number in (3, 5, 1_000)]),
        ("usage", [(3600, hour, f"key_{n}", "listPets", "ok", 7) for hour in (0, 3600) for n in range(2)]),
    ],
    ids=["pets", "usage"],
)
def test_rows_arrive_as_they_are_and_come_out_in_order(store_at: StorePlace, name: str, rows: list[Row]) -> None:
    moved = table(name)
    *most, last = rows

    async def work(store: Store) -> None:
        assert await store.transfer.last_row(moved) is None
        await store.transfer.put_rows(moved, most)
        with pytest.raises(REFUSED_ROW):
            await store.transfer.put_rows(moved, [last, most[0]])  # one is there already, so neither is added
        assert await store.transfer.last_row(moved) == most[-1]
        await store.transfer.put_rows(moved, [last])
        assert await store.transfer.last_row(moved) == rows[-1]
        assert await store.transfer.rows(moved, None, 100) == rows
        assert await store.transfer.rows(moved, None, 2) == rows[:2]
        assert await store.transfer.rows(moved, moved.key_of(rows[1]), 100) == rows[2:]
        assert await store.transfer.rows(moved, moved.key_of(rows[-1]), 100) == []

    store_at.use(work)


def test_every_table_of_the_database_is_copied(store_at: StorePlace) -> None:
    """But for those that describe the database itself."""
    store_at.use(lambda store: store.database.ping())
    if store_at.url is None:
        sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    else:
        sql = "SELECT tablename FROM pg_tables WHERE schemaname = 'petstore_live' AND tablename <> 'migrations'"
    found = {row[0] for row in store_at.by_hand(sql)}
    assert found - {table.name for table in TABLES} == set(OWN_TABLES)
    assert {table.name for table in TABLES} <= found


def test_ids_continue_behind_the_last_one_that_another_store_gave_out(store_at: StorePlace) -> None:
    async def work(store: Store) -> list[int]:
        await store.transfer.put_rows(COUNTERS, [("pets", 100), ("audit", 7)])
        await store.transfer.put_rows(COUNTERS, [("pets", 50), ("audit", 7)])  # never back
        assert sorted(await store.transfer.rows(COUNTERS, None, 10)) == [("audit", 7), ("pets", 100)]
        ids = [(await store.pets.add(NewPet("Rex", 1), NOW)).pet.id for _ in range(2)]
        await store.transfer.put_rows(table("pets"), [(150, "Mia", 1, "sold", 0), (200, "Bo", 1, "sold", 1)])
        return [*ids, (await store.pets.add(NewPet("Max", 1), NOW)).pet.id]

    assert store_at.use(work) == [101, 102, 201]


def test_unfinished_copy_is_remembered(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        assert await store.transfer.copying_from() is None
        await store.transfer.set_copying_from("there")
        await store.transfer.set_copying_from("elsewhere")
        assert await store.transfer.copying_from() == "elsewhere"
        await store.transfer.set_copying_from(None)
        assert await store.transfer.copying_from() is None

    store_at.use(work)


def test_all_rows_are_put_into_an_empty_store_only(store_at: StorePlace) -> None:
    rows: dict[Table, list[Row]] = {table("pets"): [(3, "Rex", 1, "sold", 0)], COUNTERS: [("pets", 9), ("audit", 2)]}
    changes: list[Change] = []

    async def work(store: Store) -> None:
        assert await store.transfer.put_all(rows)
        assert sorted(changes) == ["added", "edited", "keys"]
        assert not await store.transfer.put_all(rows)
        assert await store.transfer.rows(table("pets"), None, 10) == rows[table("pets")]
        assert (await store.pets.add(NewPet("Mia", 1), NOW)).pet.id == 10

    store_at.use(work, changes)


def test_of_several_at_once_one_puts_all_rows(store_at: StorePlace) -> None:
    rows: dict[Table, list[Row]] = {
        table("pets"): [(number, f"Pet {number}", 1, "sold", 0) for number in range(1, 500)],
        table("usage"): [
            (3600, hour, f"key_{n}", "listPets", "ok", 7) for hour in range(0, 36_000, 3600) for n in range(10, 60)
        ],
    }

    async def work(store: Store) -> None:
        async with store_at.open() as second, store_at.open() as third:
            filled = await asyncio.gather(*(each.transfer.put_all(rows) for each in (store, second, third)))
            assert sorted(filled) == [False, False, True]
        for each, expected in rows.items():
            assert await store.transfer.rows(each, None, 1_000) == expected

    store_at.use(work)


@pytest.mark.parametrize("name", ["pets", "keys", "audit"])
def test_a_store_with_a_row_is_not_filled(store_at: StorePlace, name: str) -> None:
    row = {
        "pets": (1, "Rex", 1, "sold", 0),
        "keys": key_row(new_key("live", "free", now=NOW)),
        "audit": (1, NOW, "a test", "test", "", "", None, None, None),
    }[name]

    async def work(store: Store) -> None:
        await store.transfer.put_rows(table(name), [row])
        assert not await store.transfer.put_all({table("pets"): [(5, "Mia", 1, "sold", 0)]})
        assert await store.transfer.rows(table(name), None, 10) == [row]

    store_at.use(work)


def test_rows_that_cannot_be_put_leave_the_store_empty(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        with pytest.raises(REFUSED_ROW):
            await store.transfer.put_all(
                {
                    table("pets"): [(1, "Rex", 1, "sold", 0)],
                    table("usage"): 2 * [(3600, 0, "key_1", "listPets", "ok", 1)],
                }
            )
        assert await store.transfer.last_row(table("pets")) is None

    store_at.use(work)
