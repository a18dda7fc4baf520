"""Removals, on every backend: animals that are removed together and restored, some of them or all."""

import asyncio

import pytest

from harness.stores import ENTRY, NOW, StorePlace, names
from petstore.audit import AuditEntry
from petstore.changes import Change
from petstore.pets import NewPet, Pet, PetChanges, Removal, RemovedPet
from petstore.store import Store
from petstore.store.schema import PETS
from tests.store.test_imports import SMALL_CHUNKS

REMOVE = AuditEntry(NOW + 1, "ada", "remove animal", "")
RESTORE = AuditEntry(NOW + 2, "bob", "restore animal", "")


async def add(store: Store, count: int) -> list[Pet]:
    return [(await store.pets.add(NewPet(f"Pet {i}", i, "sold"), NOW)).pet for i in range(count)]


async def entries(store: Store) -> list[tuple[str, str, str, str]]:
    """The actor, the action, the subject and the detail of each audit entry, newest first."""
    found = (await store.audit.find()).entries
    return [
        (entry.actor, entry.action, entry.subject, entry.detail) for _, entry in found if entry.actor != ENTRY.actor
    ]


async def removed_one(store: Store, pet_id: int) -> str:
    removal_id, _ = await store.removals.remove([pet_id], REMOVE)
    assert removal_id is not None
    return removal_id


def test_removed_animals_are_restored_as_they_were(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        pets = await add(store, 4)
        edited = await store.pets.update(pets[1].id, PetChanges(name="Edited"), ENTRY)
        rows = await store.transfer.rows(PETS, None, 10)
        assert [row[-1] for row in rows] == [0, 1, 0, 0]  # `edited`
        removal_id, removed = await store.removals.remove([pet.id for pet in pets[:3]], REMOVE)
        assert removal_id is not None and removed == [pets[0], edited, pets[2]]
        assert await names(store) == ["Pet 3"]
        removal = Removal(removal_id, NOW + 1, "ada", 3)
        assert await store.removals.find([removal_id, "rem_unknown"]) == {removal_id: removal}
        assert await store.removals.of_pets([1, 4, 99]) == {1: RemovedPet(pets[0], removal)}
        assert await store.removals.restore([3, 1, 4, 99], RESTORE) == [pets[0], pets[2]]
        assert (await store.removals.find([removal_id]))[removal_id].pets == 1
        assert await store.removals.restore_all(removal_id, RESTORE) == 1
        assert await store.transfer.rows(PETS, None, 10) == rows
        assert await store.removals.restore_all(removal_id, RESTORE) == 0
        assert await store.removals.restore([1], RESTORE) == []
        assert (await store.pets.add(NewPet("Later", 1), NOW)).pet.id == pets[-1].id + 1

    store_at.use(work)


def test_a_removal_has_one_audit_entry(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await add(store, 15)
        many, _ = await store.removals.remove(range(1, 13), REMOVE)
        pair, _ = await store.removals.remove([13, 14], REMOVE)
        one = await removed_one(store, 15)
        await store.removals.restore([1, 2, 13, 15], RESTORE)
        await store.removals.restore_all(str(many), RESTORE)
        assert await entries(store) == [
            ("bob", "restore animal", many, "10 animals"),
            ("bob", "restore animal", "15", f"Pet 14, category 14, sold, {one}"),
            ("bob", "restore animal", "13", f"Pet 12, category 12, sold, {pair}"),
            ("bob", "restore animal", many, "2 animals: 1, 2"),
            ("ada", "remove animal", "15", f"Pet 14, category 14, sold, {one}"),
            ("ada", "remove animal", pair, "2 animals: 13, 14"),
            ("ada", "remove animal", many, "12 animals: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 …"),
        ]

    store_at.use(work)


def test_an_animal_that_is_removed_again_belongs_to_its_last_removal(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await add(store, 1)
        first = await removed_one(store, 1)
        await store.removals.restore([1], RESTORE)
        await store.pets.update(1, PetChanges(name="Renamed"), ENTRY)
        second = await removed_one(store, 1)
        assert await store.removals.restore_all(first, RESTORE) == 0
        assert [pet.name for pet in await store.removals.restore([1], RESTORE)] == ["Renamed"]
        assert await store.removals.restore_all(second, RESTORE) == 0

    store_at.use(work)


def test_a_large_removal_is_restored_in_steps_and_after_an_interruption(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await add(store, 95)
        removal_id, _ = await store.removals.remove(range(1, 96), REMOVE)
        assert removal_id is not None
        changes.clear()
        reached: list[int] = []

        def interrupt(restored: int) -> None:
            reached.append(restored)
            if restored == 20:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            await store.removals.restore_all(removal_id, RESTORE, interrupt)
        assert (reached, changes) == ([10, 20], ["edited"] * 2)
        assert await store.removals.restore_all(removal_id, RESTORE) == 75
        assert len(await names(store)) == 95
        assert [detail for *_, detail in await entries(store)][:2] == ["75 animals", "95 animals"]

    store_at.use(work, changes, SMALL_CHUNKS)


def test_operators_who_restore_the_same_removal_at_once_restore_each_animal_once(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        pets = await add(store, 50)
        removal_id, _ = await store.removals.remove([pet.id for pet in pets], REMOVE)
        assert removal_id is not None
        async with store_at.open() as other:
            some = await asyncio.gather(
                store.removals.restore_all(removal_id, RESTORE),
                other.removals.restore_all(removal_id, RESTORE),
                store.removals.restore(range(1, 26), RESTORE),
                other.removals.restore(range(50, 10, -1), RESTORE),
            )
        assert some[0] + some[1] + len(some[2]) + len(some[3]) == 50
        assert (await store.pets.page(after=0, limit=100, status=None)).pets == pets

    store_at.use(work)
