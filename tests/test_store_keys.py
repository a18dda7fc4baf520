"""API keys in the store, and rows on their way to another store, on every backend."""

import asyncio

import msgspec
import pytest

from petstore.audit import AuditEntry
from petstore.errors import Unavailable
from petstore.keys import ApiKey, digest_of, new_key
from petstore.pets import NewPet
from petstore.plans import Limits
from petstore.store import Store, Subject
from petstore.store.schema import COUNTERS, TABLES, Row, Table, row_of
from tests.places import StorePlace

NOW = 1_800_000_000.0
FIRST, SECOND, THIRD = digest_of("first"), digest_of("second"), digest_of("third")


def key(number: int = 0, **changes: object) -> ApiKey:
    made = new_key("live", "enterprise", now=NOW + number, name=f"Key {number}", limits=Limits(5, 50))
    return msgspec.structs.replace(made, id=f"key_{number:03}", **changes)


def entry(action: str) -> AuditEntry:
    return AuditEntry(NOW, "a test", action, "key_000", "some detail")


def test_a_key_is_found_by_its_secret_as_it_was_added(store_at: StorePlace) -> None:
    added = key(expires=NOW + 50, scopes=("read",))
    changes: list[Subject] = []

    async def work(store: Store) -> None:
        await store.add_key(added, FIRST, entry("create key"))
        assert changes == ["keys"]
        assert await store.find_key(FIRST) == added == await store.key("key_000")
        assert await store.find_key(SECOND) is None
        assert await store.key("key_001") is None
        assert [found for _, found in (await store.find_entries()).entries] == [entry("create key")]

    store_at.use(work, changes)


def test_of_those_who_add_a_first_key_at_once_one_does(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        stores = [store, *(store_at.open() for _ in range(4))]
        await asyncio.gather(*(each.ping() for each in stores))  # connected, so that they do come at once
        adding = (
            each.add_key(key(number), digest_of(f"secret {number}"), entry("create key"), only_first=True)
            for number, each in enumerate(stores)
        )
        assert sorted(await asyncio.gather(*adding)) == [False] * 4 + [True]
        assert len(await store.keys()) == len((await store.find_entries()).entries) == 1
        assert await store.add_key(key(9), SECOND, entry("create key"))
        for each in stores[1:]:
            await each.close()

    store_at.use(work)


@pytest.mark.parametrize(
    ("own_end", "as_found"),
    [(None, NOW + 60), (NOW + 50, NOW + 50), (NOW + 60, NOW + 60), (NOW + 70, NOW + 60)],
    ids=["endless", "sooner", "the same", "later"],
)
def test_an_old_secret_ends_when_it_was_told_to_or_with_its_key(
    store_at: StorePlace, own_end: float | None, as_found: float
) -> None:
    changes: list[Subject] = []

    async def work(store: Store) -> None:
        await store.add_key(key(expires=own_end), FIRST, entry("create key"))
        await store.rotate_key("key_000", SECOND, NOW + 60, entry("rotate key"))
        assert changes == ["keys", "keys"]
        old, new = await store.find_key(FIRST), await store.find_key(SECOND)
        assert old is not None and old.expires == as_found
        assert new == key(expires=own_end)
        assert (await store.find_entries(limit=1)).entries[0][1] == entry("rotate key")

    store_at.use(work, changes)


def test_of_rotations_at_once_one_secret_is_left_for_good(store_at: StorePlace) -> None:
    secrets = [bytes([number]) * 32 for number in range(8)]

    async def work(store: Store) -> None:
        await store.add_key(key(), FIRST, entry("create key"))
        await asyncio.gather(*(store.rotate_key("key_000", each, NOW + 60, entry("rotate key")) for each in secrets))
        found = [await store.find_key(each) for each in secrets]
        assert sum(each is not None and each.expires is None for each in found) == 1

    store_at.use(work)


def test_a_further_rotation_never_lengthens_an_old_secrets_life(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.add_key(key(), FIRST, entry("create key"))
        await store.rotate_key("key_000", SECOND, NOW + 60, entry("rotate key"))
        await store.rotate_key("key_000", THIRD, NOW + 90, entry("rotate key"))
        ends = [found.expires for d in (FIRST, SECOND, THIRD) if (found := await store.find_key(d))]
        assert ends == [NOW + 60, NOW + 90, None]

    store_at.use(work)


def test_a_revoked_key_is_found_as_revoked(store_at: StorePlace) -> None:
    changes: list[Subject] = []

    async def work(store: Store) -> None:
        await store.add_key(key(), FIRST, entry("create key"))
        await store.add_key(key(1), SECOND, entry("create key"))
        await store.revoke_key("key_000", entry("revoke key"))
        assert changes == ["keys"] * 3
        assert await store.find_key(FIRST) == key(revoked=NOW)
        assert await store.find_key(SECOND) == key(1)
        assert (await store.find_entries(limit=1)).entries[0][1] == entry("revoke key")

    store_at.use(work, changes)


def test_keys_come_in_the_order_of_their_ids_and_by_their_ids(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for number in (3, 1, 2, 0):
            await store.add_key(key(number), digest_of(str(number)), entry("create key"))
        assert await store.keys() == [key(number) for number in range(4)]
        assert await store.keys(after="key_001", limit=1) == [key(2)]
        assert await store.keys(after="key_003") == []
        assert await store.keys_by_id(["key_002", "key_none", "key_000"]) == {"key_000": key(0), "key_002": key(2)}
        assert await store.keys_by_id([]) == {}

    store_at.use(work)


def test_the_newest_hundred_keys_are_told_at_a_time(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.put_rows(table("keys"), [row_of(key(number)) for number in range(101)])
        assert await store.newest_keys() == [key(number) for number in range(100, 0, -1)]

    store_at.use(work)


def table(name: str) -> Table:
    return next(table for table in TABLES if table.name == name)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("pets", [(number, f"Pet {number}", -number, "sold") for number in (3, 5, 1_000)]),
        ("usage", [(f"key_{n}", hour, "ok", 7) for hour in (0, 3600) for n in range(2)]),
    ],
    ids=["pets", "usage"],
)
def test_rows_arrive_as_they_are_and_come_out_in_order(store_at: StorePlace, name: str, rows: list[Row]) -> None:
    moved = table(name)
    *most, last = rows

    async def work(store: Store) -> None:
        assert await store.last_row(moved) is None
        await store.put_rows(moved, most)
        with pytest.raises(Unavailable):
            await store.put_rows(moved, [last, most[0]])  # one is there already, so neither is added
        assert await store.last_row(moved) == most[-1]
        await store.put_rows(moved, [last])
        assert await store.last_row(moved) == rows[-1]
        assert await store.rows(moved, None, 100) == rows
        assert await store.rows(moved, None, 2) == rows[:2]
        assert await store.rows(moved, moved.key_of(rows[1]), 100) == rows[2:]
        assert await store.rows(moved, moved.key_of(rows[-1]), 100) == []

    store_at.use(work)


def test_ids_go_on_behind_the_last_one_that_was_given_out_elsewhere(store_at: StorePlace) -> None:
    async def work(store: Store) -> list[int]:
        await store.put_rows(COUNTERS, [("pets", 100), ("deeds", 7)])
        await store.put_rows(COUNTERS, [("pets", 50), ("deeds", 7)])  # never back
        assert sorted(await store.rows(COUNTERS, None, 10)) == [("deeds", 7), ("pets", 100)]
        ids = [(await store.add(NewPet("Rex", 1), NOW)).pet.id for _ in range(2)]
        await store.put_rows(table("pets"), [(150, "Mia", 1, "sold"), (200, "Bo", 1, "sold")])
        return [*ids, (await store.add(NewPet("Max", 1), NOW)).pet.id]

    assert store_at.use(work) == [101, 102, 201]


def test_a_copy_that_is_under_way_is_noted(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        assert await store.copying_from() is None
        await store.set_copying_from("there")
        await store.set_copying_from("elsewhere")
        assert await store.copying_from() == "elsewhere"
        await store.set_copying_from(None)
        assert await store.copying_from() is None

    store_at.use(work)
