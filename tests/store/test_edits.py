"""Concurrent edits by two operators, on every backend. What each of them saw is compared with the locked row."""

import asyncio
from collections.abc import Awaitable

import msgspec
import pytest

from harness.stores import BY, NOW, StorePlace
from petstore.changes import Change
from petstore.edits import Conflict
from petstore.errors import OperatorError
from petstore.keys import ApiKey, KeyChanges, new_key
from petstore.pets import NewPet, Pet, PetChanges
from petstore.plans import Limits
from petstore.store import Store

ROUNDS = 10


async def add_key(store: Store) -> ApiKey:
    key = new_key("live", "enterprise", now=NOW, name="Ada", contact="ada@example.com", limits=Limits(5, 50))
    await store.keys.create(key, key.id, BY)
    return key


async def add_pet(store: Store) -> Pet:
    return (await store.pets.add(NewPet("Rex", 7), NOW)).pet


async def details(store: Store, subject: str) -> list[str]:
    """Returns the details of the audit entries about edits of one key or animal, oldest first."""
    found = (await store.audit.find(subject=subject)).entries
    return [entry.detail for _, entry in reversed(found) if entry.action.startswith("update")]


async def conflict_of(update: Awaitable[object]) -> Conflict:
    with pytest.raises(Conflict) as raised:
        await update
    return raised.value


# Sequential edits


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (KeyChanges(plan="pro"), KeyChanges(name="Ada's shop")),
        (KeyChanges(name="Ada's shop"), KeyChanges(per_minute=7)),
        (KeyChanges(scopes=("read",)), KeyChanges(plan="pro")),
        (KeyChanges(contact=""), KeyChanges(scopes=("read",))),
        (KeyChanges(expires=NOW + 9.5), KeyChanges(contact="bob@example.com")),
    ],
    ids=["plan-name", "name-limits", "scopes-plan", "contact-scopes", "expires-contact"],
)
def test_changes_of_different_units_of_a_key_both_survive(
    store_at: StorePlace, theirs: KeyChanges, ours: KeyChanges
) -> None:
    async def work(store: Store) -> None:
        seen = await add_key(store)
        first = await store.keys.update(seen.id, theirs, BY, seen)
        second = await store.keys.update(seen.id, ours, BY, seen)
        assert second == await store.keys.get(seen.id)
        alone = await add_key(store)
        only_ours = await store.keys.update(alone.id, ours, BY)
        for field in ApiKey.__struct_fields__:
            if field != "id":
                changed_first = getattr(first, field) != getattr(seen, field)
                assert getattr(second, field) == getattr(first if changed_first else only_ours, field), field

    store_at.use(work)


@pytest.mark.parametrize(
    ("theirs", "ours", "units"),
    [
        (KeyChanges(name="Grace"), KeyChanges(name="Bob"), [("name",)]),
        (KeyChanges(contact=""), KeyChanges(contact="bob"), [("contact",)]),
        (KeyChanges(plan="pro"), KeyChanges(per_minute=7, per_day=50, plan="enterprise"), "plan"),
        (KeyChanges(per_day=70), KeyChanges(plan="free"), "plan"),
        (KeyChanges(per_day=70), KeyChanges(per_minute=7), "plan"),
        (KeyChanges(scopes=("read",)), KeyChanges(scopes=("write",)), [("scopes",)]),
        (KeyChanges(expires=NOW + 9.5), KeyChanges(expires=NOW + 9.25), [("expires",)]),
    ],
    ids=["name", "contact", "plan-limits", "limits-plan", "limits", "scopes", "expires"],
)
def test_changes_of_the_same_unit_of_a_key_conflict_and_write_nothing(
    store_at: StorePlace, theirs: KeyChanges, ours: KeyChanges, units: object
) -> None:
    changes: list[Change] = []
    plan = [("plan", "per_minute", "per_day")]

    async def work(store: Store) -> None:
        seen = await add_key(store)
        first = await store.keys.update(seen.id, theirs, BY, seen)
        changes.clear()
        other = "contact" if ours.contact is msgspec.UNSET else "name"
        also = msgspec.structs.replace(ours, **{other: "Eve"})  # does not conflict, but is not written either
        conflict = await conflict_of(store.keys.update(seen.id, also, BY, seen))
        assert conflict.current == first == await store.keys.get(seen.id)
        assert conflict.units == (plan if units == "plan" else units)
        assert changes == []
        # After the operator has seen the current values, the same changes succeed.
        assert await store.keys.update(seen.id, also, BY, first) == conflict.wanted == await store.keys.get(seen.id)

    store_at.use(work, changes)


def test_an_update_keeps_a_suspension_that_its_operator_has_not_seen(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        seen = await add_key(store)
        await store.keys.suspend(seen.id, BY)
        changed = await store.keys.update(seen.id, KeyChanges(name="Bob"), BY, seen)
        assert (changed.name, changed.suspended) == ("Bob", BY.at)

    store_at.use(work)


def test_an_answer_conflicts_again_if_the_value_has_changed_once_more(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        key, pet = await add_key(store), await add_pet(store)
        for name in ("Grace", "Bob"):
            await store.keys.update(key.id, KeyChanges(name=name), BY)
            await store.pets.update(pet.id, PetChanges(name=name), BY)
            of_key = await conflict_of(store.keys.update(key.id, KeyChanges(name="Eve"), BY, key))
            of_pet = await conflict_of(store.pets.update(pet.id, PetChanges(name="Eve"), BY, pet))
            assert isinstance(of_key.current, ApiKey) and isinstance(of_pet.current, Pet)
            key, pet = of_key.current, of_pet.current
            assert key.name == pet.name == name
        await store.keys.update(key.id, KeyChanges(name="Eve"), BY, key)
        await store.pets.update(pet.id, PetChanges(name="Eve"), BY, pet)
        assert await details(store, key.id) == ["name Ada → Grace", "name Grace → Bob", "name Bob → Eve"]
        assert await details(store, str(pet.id)) == ["name Rex → Grace", "name Grace → Bob", "name Bob → Eve"]

    store_at.use(work)


def test_the_same_change_of_both_is_no_conflict(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        key, pet = await add_key(store), await add_pet(store)
        for _ in range(2):
            await store.keys.update(key.id, KeyChanges(plan="pro"), BY, key)
            await store.pets.update(pet.id, PetChanges(status="sold"), BY, pet)
        assert len(await details(store, key.id)) == len(await details(store, str(pet.id))) == 1

    store_at.use(work)


def test_every_member_of_an_animal_is_a_unit(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        seen = await add_pet(store)
        ours = [PetChanges(name="Max"), PetChanges(category_id=8), PetChanges(status="sold")]
        for each in ours:
            await store.pets.update(seen.id, each, BY, seen)
        assert await store.pets.get(seen.id) == Pet(seen.id, "Max", 8, "sold")
        assert await details(store, str(seen.id)) == [
            "name Rex → Max",
            "category id 7 → 8",
            "status available → sold",
        ]
        for each in (PetChanges(name="Bo"), PetChanges(category_id=9), PetChanges(status="pending")):
            await conflict_of(store.pets.update(seen.id, each, BY, seen))

    store_at.use(work)


def test_a_bulk_edit_writes_only_the_status(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        pet = await add_pet(store)
        async with store_at.open() as other:
            await asyncio.gather(
                store.pets.set_status([pet.id], "sold", BY),
                other.pets.update(pet.id, PetChanges(name="Max", category_id=8), BY, pet),
            )
        assert await store.pets.get(pet.id) == Pet(pet.id, "Max", 8, "sold")

    store_at.use(work)


def test_limits_are_checked_against_the_plan_that_the_key_has_by_then(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        key = await add_key(store)
        await store.keys.update(key.id, KeyChanges(plan="free"), BY)
        with pytest.raises(OperatorError, match="the free plan has fixed limits"):
            await store.keys.update(key.id, KeyChanges(per_minute=7), BY)
        assert len(await details(store, key.id)) == 1

    store_at.use(work)


# Concurrent edits


def test_of_two_changes_at_once_of_the_same_unit_one_conflicts(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with store_at.open() as other:
            for _ in range(ROUNDS):
                key, pet = await add_key(store), await add_pet(store)
                results = await asyncio.gather(
                    store.keys.update(key.id, KeyChanges(name="Bob"), BY, key),
                    other.keys.update(key.id, KeyChanges(name="Eve"), BY, key),
                    store.pets.update(pet.id, PetChanges(name="Bob"), BY, pet),
                    other.pets.update(pet.id, PetChanges(name="Eve"), BY, pet),
                    return_exceptions=True,
                )
                for pair, now in (
                    (results[:2], await store.keys.get(key.id)),
                    (results[2:], await store.pets.get(pet.id)),
                ):
                    (written,) = [result for result in pair if not isinstance(result, BaseException)]
                    (conflict,) = [result for result in pair if isinstance(result, Conflict)]
                    assert written == conflict.current == now

    store_at.use(work)


def test_changes_at_once_of_different_units_both_survive(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with store_at.open() as other:
            for _ in range(ROUNDS):
                key, pet = await add_key(store), await add_pet(store)
                await asyncio.gather(
                    store.keys.update(key.id, KeyChanges(name="Bob"), BY, key),
                    other.keys.update(key.id, KeyChanges(plan="pro"), BY, key),
                    store.pets.update(pet.id, PetChanges(name="Max"), BY, pet),
                    other.pets.update(pet.id, PetChanges(status="sold"), BY, pet),
                )
                changed = await store.keys.get(key.id)
                assert changed is not None and (changed.name, changed.plan, changed.per_minute) == ("Bob", "pro", 300)
                assert await store.pets.get(pet.id) == Pet(pet.id, "Max", 7, "sold")

    store_at.use(work)


def test_the_audit_entries_of_changes_at_once_follow_from_each_other(store_at: StorePlace) -> None:
    """Each entry records the value that its transaction found, not the value that its operator saw before."""

    async def work(store: Store) -> None:
        key, pet = await add_key(store), await add_pet(store)
        async with store_at.open() as other:
            both = (store, other)
            await asyncio.gather(
                *(both[i % 2].keys.update(key.id, KeyChanges(name=f"N{i}"), BY) for i in range(ROUNDS)),
                *(both[i % 2].pets.update(pet.id, PetChanges(name=f"N{i}"), BY) for i in range(ROUNDS)),
            )
        for subject, before in ((key.id, "Ada"), (str(pet.id), "Rex")):
            found = await details(store, subject)
            assert len(found) == ROUNDS
            for detail in found:
                old, new = detail.removeprefix("name ").split(" → ")
                assert old == before
                before = new

    store_at.use(work)
