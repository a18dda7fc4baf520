"""What the console needs from the store, on every backend: filtered keys, restored animals, histories, roles."""

import pytest

from harness.stores import BY, NOW, StorePlace
from petstore.audit import Actor, AuditEntry
from petstore.errors import OperatorError
from petstore.keys import ApiKey, KeyQuery, KeySort, mint, new_key
from petstore.operators import Operator
from petstore.store import Store


async def add_keys(store: Store) -> dict[str, ApiKey]:
    """Adds active, suspended, expired and revoked keys, and one with another plan. Returns the keys by name."""
    keys = {}
    for i, name in enumerate(("delta", "alpha", "charlie", "bravo", "echo")):
        expires = NOW - 1.0 if name == "charlie" else None
        key = new_key("live", "pro" if name == "echo" else "free", now=NOW - 10.0 + i, name=name, expires=expires)
        await store.keys.create(key, mint("live"), BY)
        keys[name] = key
    await store.keys.suspend(keys["alpha"].id, Actor("a test", NOW))
    await store.keys.revoke(keys["bravo"].id, BY)
    return keys


def names(found: list[ApiKey]) -> list[str]:
    return [key.name for key in found]


def test_keys_are_found_by_text_plan_state_and_id(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        keys = await add_keys(store)

        async def find(query: KeyQuery) -> list[str]:
            return names(await store.keys.search(query, now=NOW))

        assert await find(KeyQuery()) == ["echo", "bravo", "charlie", "alpha", "delta"]
        assert await find(KeyQuery(text="LPH")) == ["alpha"]
        assert await find(KeyQuery(text=keys["delta"].id[4:])) == ["delta"]
        assert await find(KeyQuery(plan="pro")) == ["echo"]
        assert await find(KeyQuery(state="active")) == ["echo", "delta"]
        assert await find(KeyQuery(state="suspended")) == ["alpha"]
        assert await find(KeyQuery(state="expired")) == ["charlie"]
        assert await find(KeyQuery(state="revoked")) == ["bravo"]
        ids = [keys["delta"].id, keys["alpha"].id]
        assert await find(KeyQuery(ids=ids)) == ["alpha", "delta"]
        assert await find(KeyQuery(ids=[])) == []
        assert await find(KeyQuery(except_ids=ids)) == ["echo", "bravo", "charlie"]
        assert await find(KeyQuery("e", "free", "active", ids)) == ["delta"]

    store_at.use(work)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("created", ["echo", "bravo", "charlie", "alpha", "delta"]),
        ("name", ["alpha", "bravo", "charlie", "delta", "echo"]),
    ],
)
def test_pages_of_sorted_keys_follow_each_other(store_at: StorePlace, sort: KeySort, order: list[str]) -> None:
    async def work(store: Store) -> None:
        await add_keys(store)
        found: list[ApiKey] = []
        after = None
        while page := await store.keys.search(KeyQuery(), now=NOW, sort=sort, after=after, limit=2):
            found += page
            after = page[-1]
        assert names(found) == order

    store_at.use(work)


def test_entries_of_a_subject_are_not_those_of_a_longer_one(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for subject in ("1", "11", "111", "1"):
            await store.audit.record(AuditEntry(NOW, "ada", "set status", subject, "1"))
        found = await store.audit.find(subject="1")
        assert [entry.subject for _, entry in found.entries] == ["1", "1"]
        assert (await store.audit.find(subject="1", action="sign in")).entries == []

    store_at.use(work)


def test_a_role_is_changed_unless_the_operator_is_revoked(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.operators.add(Operator("ada", NOW), "token", BY)
        await store.operators.set_role("ada", "viewer", BY)
        assert (await store.operators.identify("token")).role == "viewer"
        assert (await store.audit.history("ada"))[0][1] == BY.entry("set role", "ada", "operator → viewer")
        with pytest.raises(OperatorError, match="no active operator is named grace"):
            await store.operators.set_role("grace", "viewer", BY)
        await store.operators.revoke("ada", BY)
        with pytest.raises(OperatorError, match="no active operator is named ada"):
            await store.operators.set_role("ada", "operator", BY)

    store_at.use(work)
