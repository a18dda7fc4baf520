"""Copying rows to another store, on every backend."""

import pytest

from harness.stores import NOW, REFUSED_ROW, StorePlace
from petstore.pets import NewPet
from petstore.store import Store
from petstore.store.schema import COUNTERS, TABLES, Row, Table
from tests.pet_members import pet_row


def table(name: str) -> Table:
    return next(table for table in TABLES if table.name == name)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("pets", [pet_row(number, added_by=7) for number in (3, 5, 1_000)]),
        ("usage", [(3600, hour, f"key_{n}", "listPets", "admitted", 7) for hour in (0, 3600) for n in range(2)]),
    ],
    ids=["pets", "usage"],
)
def test_rows_arrive_as_they_are_and_come_out_in_order(store_at: StorePlace, name: str, rows: list[Row]) -> None:
    moved = table(name)
    *most, last = rows

    async def work(store: Store) -> None:
        await store.transfer.put_rows(moved, most)
        with pytest.raises(REFUSED_ROW):
            await store.transfer.put_rows(moved, [last, most[0]])  # one already exists, so neither is added
        assert await store.transfer.rows(moved, None, 100) == most
        await store.transfer.put_rows(moved, [last])
        assert await store.transfer.rows(moved, None, 100) == rows
        assert await store.transfer.rows(moved, None, 2) == rows[:2]
        assert await store.transfer.rows(moved, moved.primary_key_of(rows[1]), 100) == rows[2:]
        assert await store.transfer.rows(moved, moved.primary_key_of(rows[-1]), 100) == []

    store_at.use(work)


def test_ids_continue_behind_the_last_one_that_another_store_gave_out(store_at: StorePlace) -> None:
    async def work(store: Store) -> list[int]:
        await store.transfer.put_rows(COUNTERS, [("pets", 100), ("audit", 7)])
        await store.transfer.put_rows(COUNTERS, [("pets", 50), ("audit", 7)])  # never goes back
        assert sorted(await store.transfer.rows(COUNTERS, None, 10)) == [("audit", 7), ("pets", 100)]
        ids = [(await store.pets.add(NewPet("Rex", 1), NOW)).pet.id for _ in range(2)]
        await store.transfer.put_rows(table("pets"), [pet_row(number) for number in (150, 200)])
        return [*ids, (await store.pets.add(NewPet("Max", 1), NOW)).pet.id]

    assert store_at.use(work) == [101, 102, 201]
