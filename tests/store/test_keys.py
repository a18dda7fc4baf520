"""API keys in the store, on every backend."""

import asyncio

import msgspec
import pytest

from harness.stores import NOW, StorePlace
from petstore.audit import Actor, AuditEntry
from petstore.changes import Change
from petstore.errors import OperatorError
from petstore.keys import ApiKey, KeyChanges, KeyQuery, Secret, digest_of, new_key
from petstore.plans import Limits
from petstore.store import Store
from petstore.store.schema import TABLES, key_row
from petstore.wording import when

FIRST, SECOND, THIRD = "first", "second", "third"  # secrets
BY = Actor("a test", NOW)


def key(number: int = 0, **changes: object) -> ApiKey:
    made = new_key("live", "enterprise", now=NOW + number, name=f"Key {number}", limits=Limits(5, 50))
    return msgspec.structs.replace(made, id=f"key_{number:03}", **changes)


async def found_by(store: Store, secret: str) -> ApiKey | None:
    return await store.keys.find(digest_of(secret))


async def entries(store: Store) -> list[AuditEntry]:
    """Returns the audit entries, newest first."""
    return [found for _, found in (await store.audit.find()).entries]


def test_key_is_found_by_its_secret_as_it_was_added(store_at: StorePlace) -> None:
    added = key(expires=NOW + 50, scopes=("read",))
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await store.keys.create(added, FIRST, BY)
        assert changes == []  # workers do not cache unknown keys, so nothing needs announcing
        assert await found_by(store, FIRST) == added == await store.keys.get("key_000")
        assert await found_by(store, SECOND) is None
        assert await store.keys.get("key_001") is None
        assert await entries(store) == [BY.entry("create key", "key_000", "enterprise")]

    store_at.use(work, changes)


def test_of_several_first_keys_at_once_one_is_added(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with store_at.open() as second, store_at.open() as third:
            stores = [store, second, third]
            await asyncio.gather(*(each.database.ping() for each in stores))  # connects, so that the calls coincide
            adding = (
                each.keys.create_first(key(number), f"secret {number}", BY) for number, each in enumerate(stores * 2)
            )
            assert sorted(await asyncio.gather(*adding)) == [False] * 5 + [True]
        assert len(await store.keys.page()) == len(await entries(store)) == 1

    store_at.use(work)


# Rotation


@pytest.mark.parametrize(
    ("own_end", "as_found"),
    [(None, NOW + 60), (NOW + 50, NOW + 50), (NOW + 60, NOW + 60), (NOW + 70, NOW + 60)],
    ids=["never", "sooner", "the same", "later"],
)
def test_old_secret_expires_after_the_overlap_or_with_its_key(
    store_at: StorePlace, own_end: float | None, as_found: float
) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await store.keys.create(key(expires=own_end), FIRST, BY)
        assert await store.keys.rotate("key_000", SECOND, 1, 60, BY) == (key(expires=own_end), as_found)
        assert changes == ["keys"]
        old, new = await found_by(store, FIRST), await found_by(store, SECOND)
        assert old is not None and old.expires == as_found
        assert new == key(expires=own_end)
        detail = f"old secret works until {when(as_found)}"
        assert (await entries(store))[0] == BY.entry("rotate key", "key_000", detail)

    store_at.use(work, changes)


def test_secrets_are_numbered_and_come_newest_first(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.keys.create(key(), FIRST, BY)
        await store.keys.create(key(1), THIRD, BY)
        await store.keys.rotate("key_000", SECOND, 1, 60, BY)
        assert await store.keys.secrets("key_000") == [Secret(2, None), Secret(1, NOW + 60)]
        assert await store.keys.secrets("key_none") == []

    store_at.use(work)


@pytest.mark.parametrize("seen", [0, 1, 3])
def test_rotation_needs_the_number_of_the_newest_secret(store_at: StorePlace, seen: int) -> None:
    async def work(store: Store) -> None:
        await store.keys.create(key(), FIRST, BY)
        await store.keys.rotate("key_000", SECOND, 1, 0, BY)
        with pytest.raises(OperatorError, match="someone else has just rotated key_000"):
            await store.keys.rotate("key_000", THIRD, seen, 0, BY)
        assert (await found_by(store, SECOND), await found_by(store, THIRD)) == (key(), None)

    store_at.use(work)


def test_further_rotation_never_extends_an_old_secrets_life(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.keys.create(key(), FIRST, BY)
        await store.keys.rotate("key_000", SECOND, 1, 60, BY)
        await store.keys.rotate("key_000", THIRD, 2, 90, BY)
        ends = [found.expires for d in (FIRST, SECOND, THIRD) if (found := await found_by(store, d))]
        assert ends == [NOW + 60, NOW + 90, None]

    store_at.use(work)


# Changes


def test_revoked_key_is_found_as_revoked(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await store.keys.create(key(), FIRST, BY)
        await store.keys.create(key(1), SECOND, BY)
        await store.keys.revoke("key_000", BY)
        assert changes == ["keys"]
        assert await found_by(store, FIRST) == key(revoked=NOW)
        assert await found_by(store, SECOND) == key(1)
        assert (await entries(store))[0] == BY.entry("revoke key", "key_000", "active → revoked")
        with pytest.raises(OperatorError, match="key_000 is revoked"):
            await store.keys.update("key_000", KeyChanges(name="Another"), BY)

    store_at.use(work, changes)


def test_update_changes_the_given_fields_of_one_key(store_at: StorePlace) -> None:
    changes: list[Change] = []
    pro = key(name="Another", plan="pro", per_minute=300, per_day=10_000)
    own_limits = KeyChanges(
        name="", plan="enterprise", per_minute=5, per_day=50, scopes=("read", "write"), expires=None
    )
    updates = [
        (KeyChanges(name="Another"), key(name="Another"), "name Key 0 → Another"),
        (KeyChanges(plan="pro"), pro, "plan enterprise → pro; per minute 5 → 300; per day 50 → 10,000"),
        (
            KeyChanges(scopes=("read",), expires=NOW + 9),
            msgspec.structs.replace(pro, scopes=("read",), expires=NOW + 9),
            f"scopes read+write → read; expires never → {when(NOW + 9)}",
        ),
        (
            own_limits,
            key(name=""),
            'name Another → ""; plan pro → enterprise; per minute 300 → 5; per day 10,000 → 50;'
            f" scopes read → read+write; expires {when(NOW + 9)} → never",
        ),
    ]

    async def work(store: Store) -> None:
        await store.keys.create(key(), FIRST, BY)
        await store.keys.create(key(1), SECOND, BY)
        for number, (update, expected, detail) in enumerate(updates, 1):
            assert await store.keys.update("key_000", update, BY) == expected
            assert await found_by(store, FIRST) == expected == await store.keys.get("key_000")
            assert changes == ["keys"] * number
            assert (await entries(store))[0] == BY.entry("update key", "key_000", detail)
        assert await store.keys.get("key_001") == key(1)
        with pytest.raises(OperatorError, match="no key has the id key_none"):
            await store.keys.update("key_none", KeyChanges(name="x"), BY)
        assert await store.keys.update("key_000", own_limits, BY) == expected
        assert len(await entries(store)) == 2 + len(updates)

    store_at.use(work, changes)


def test_suspended_key_is_found_as_suspended_until_it_is_resumed(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.keys.create(key(), FIRST, BY)
        suspended = await store.keys.suspend("key_000", Actor("a test", NOW + 1.0))
        assert suspended == key(suspended=NOW + 1.0) == await found_by(store, FIRST) == (await store.keys.page())[0]
        assert not suspended.usable(NOW) and suspended.state(NOW) == "suspended"
        resumed = await store.keys.resume("key_000", BY)
        assert resumed == key() == await found_by(store, FIRST) == (await store.keys.search(KeyQuery(), now=NOW))[0]
        assert resumed.usable(NOW) and resumed.state(NOW) == "active"

    store_at.use(work)


# Lists


def test_keys_come_in_the_order_of_their_ids_and_by_their_ids(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for number in (3, 1, 2, 0):
            await store.keys.create(key(number), str(number), BY)
        assert await store.keys.page() == [key(number) for number in range(4)]
        assert await store.keys.page(after="key_001", limit=1) == [key(2)]
        assert await store.keys.page(after="key_003") == []
        assert await store.keys.by_id(["key_002", "key_none", "key_000"]) == {"key_000": key(0), "key_002": key(2)}
        assert await store.keys.by_id([]) == {}

    store_at.use(work)


def test_keys_come_newest_first_page_by_page(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        keys = [key(number, created=NOW + number // 2) for number in range(11)]  # two keys for each creation time
        for each in keys:
            await store.keys.create(each, each.id, BY)
        seen: list[ApiKey] = []
        while page := await store.keys.search(KeyQuery(), now=NOW, after=seen[-1] if seen else None, limit=3):
            seen += page
        assert seen == keys[::-1]
        assert await store.keys.search(KeyQuery("kEY 7"), now=NOW) == [keys[7]]
        assert await store.keys.search(KeyQuery("Y_001"), now=NOW) == [keys[1]]
        assert await store.keys.search(KeyQuery("%"), now=NOW) == []
        assert await store.keys.search(KeyQuery("\x00"), now=NOW) == []

    store_at.use(work)


def test_hundred_keys_are_listed_by_default(store_at: StorePlace) -> None:
    (table,) = [table for table in TABLES if table.name == "keys"]

    async def work(store: Store) -> None:
        await store.transfer.put_rows(table, [key_row(key(number)) for number in range(101)])
        assert await store.keys.search(KeyQuery(), now=NOW) == [key(number) for number in range(100, 0, -1)]

    store_at.use(work)
