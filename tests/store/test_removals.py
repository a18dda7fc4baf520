"""Who added each animal, and animals that are removed and restored together, on every backend."""

import asyncio
import time
from typing import Any

import pytest

from harness.stores import BY, NOW, StorePlace, imported, names
from petstore.audit import Actor
from petstore.changes import Change
from petstore.errors import OperatorError
from petstore.keys import ApiKey, new_key
from petstore.pets import Adder, Found, IdempotencyKey, Matching, NewPet, Origin, Pet, PetChanges, PetQuery
from petstore.removals import Removal, RemovedPet
from petstore.store import Store
from petstore.store.schema import PETS
from tests.pet_members import FIRST
from tests.store.test_imports import SMALL_CHUNKS

ADA, BOB = Actor("ada", NOW + 1), Actor("bob", NOW + 2)


async def add(store: Store, count: int) -> list[Pet]:
    return [(await store.pets.add(NewPet(f"Pet {i}", i, "sold"), NOW)).pet for i in range(count)]


async def entries(store: Store) -> list[tuple[str, str, str, str]]:
    """Returns the actor, action, subject and detail of audit entries, newest first. Omits entries of BY."""
    found = (await store.audit.find()).entries
    return [(entry.actor, entry.action, entry.subject, entry.detail) for _, entry in found if entry.actor != BY.name]


async def removed_one(store: Store, pet_id: int) -> str:
    removal_id, _ = await store.removals.remove([pet_id], ADA)
    assert removal_id is not None
    return removal_id


def test_removed_animals_are_restored_as_they_were(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        pets = [(await store.pets.add(FIRST, NOW)).pet for _ in range(4)]
        edited = await store.pets.update(pets[1].id, PetChanges(name="Edited"), BY)
        rows = await store.transfer.rows(PETS, None, 10)
        assert [row[PETS.columns.index("edited")] for row in rows] == [0, 1, 0, 0]
        removal_id, removed = await store.removals.remove([pet.id for pet in pets[:3]], ADA)
        assert removal_id is not None and removed == [pets[0], edited, pets[2]]
        assert (await store.pets.page(after=0, limit=9, status=None)).pets == pets[3:]
        removal = Removal(removal_id, NOW + 1, "ada", 3)
        assert await store.removals.find([removal_id, "rem_unknown"]) == {removal_id: removal}
        assert await store.removals.of_pets([1, 4, 99]) == {1: RemovedPet(pets[0], removal)}
        assert await store.removals.restore([3, 1], BOB) == [pets[0], pets[2]]
        assert (await store.removals.find([removal_id]))[removal_id].pets == 1
        assert await store.removals.restore_all(removal_id, BOB) == 1
        restored = await store.transfer.rows(PETS, None, 10)
        assert [dict(zip(PETS.columns, row, strict=True)) for row in restored] == [
            dict(zip(PETS.columns, row, strict=True)) for row in rows
        ], "removing or restoring an animal changes it"
        with pytest.raises(OperatorError, match=f"all animals removed by {removal_id} have already been restored"):
            await store.removals.restore_all(removal_id, BOB)
        with pytest.raises(OperatorError, match="animal 1 has not been removed from live"):
            await store.removals.restore([1], BOB)
        assert (await store.pets.add(NewPet("Later", 1), NOW)).pet.id == pets[-1].id + 1

    store_at.use(work)


def test_of_several_animals_either_all_are_restored_or_none(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        undone = await imported(store, NewPet("imported", 1), name="animals.csv")
        await store.imports.undo(undone.id, BY)
        pets = await add(store, 3)
        await store.removals.remove([pets[0].id, pets[1].id], ADA)
        for other, why in (
            (pets[2].id, f"animal {pets[2].id} has not been removed from live"),
            (1, f"animal 1 was removed when {undone.id} was undone; to get it back, import animals.csv again"),
            (99, "removed animal 99 was not found in live"),
        ):
            with pytest.raises(OperatorError, match=why):
                await store.removals.restore([pets[0].id, other, pets[1].id], BOB)
        assert [pet.id for pet in (await store.pets.page(after=0, limit=9, status=None)).pets] == [pets[2].id]
        with pytest.raises(OperatorError, match="choose at most 1,000 animals at a time"):
            await store.removals.restore(range(1_001), BOB)

    store_at.use(work)


def test_a_removal_has_one_audit_entry(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await add(store, 15)
        many, _ = await store.removals.remove(range(1, 13), ADA)
        pair, _ = await store.removals.remove([13, 14], ADA)
        one = await removed_one(store, 15)
        await store.removals.restore([1, 2, 13, 15], BOB)
        await store.removals.restore_all(str(many), BOB)
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
        await store.removals.restore([1], BOB)
        await store.pets.update(1, PetChanges(name="Renamed"), BY)
        second = await removed_one(store, 1)
        with pytest.raises(OperatorError, match="already been restored"):
            await store.removals.restore_all(first, BOB)
        assert [pet.name for pet in await store.removals.restore([1], BOB)] == ["Renamed"]
        with pytest.raises(OperatorError, match="already been restored"):
            await store.removals.restore_all(second, BOB)

    store_at.use(work)


def test_a_large_removal_is_restored_in_steps_and_after_an_interruption(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await add(store, 95)
        removal_id, _ = await store.removals.remove(range(1, 96), ADA)
        assert removal_id is not None
        changes.clear()
        reached: list[int] = []

        def interrupt(restored: int) -> None:
            reached.append(restored)
            if restored == 20:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            await store.removals.restore_all(removal_id, BOB, interrupt)
        assert (reached, changes) == ([10, 20], ["edited"] * 2)
        assert await store.removals.restore_all(removal_id, BOB) == 75
        assert len(await names(store)) == 95
        assert [detail for *_, detail in await entries(store)][:2] == ["75 animals", "95 animals"]

    store_at.use(work, changes, SMALL_CHUNKS)


def test_operators_who_restore_the_same_removal_at_once_restore_each_animal_once(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        pets = await add(store, 50)
        removal_id, _ = await store.removals.remove([pet.id for pet in pets], ADA)
        assert removal_id is not None
        async with store_at.open() as other:
            some = await asyncio.gather(
                store.removals.restore_all(removal_id, BOB),
                other.removals.restore_all(removal_id, BOB),
                store.removals.restore(range(1, 26), BOB),
                other.removals.restore(range(50, 10, -1), BOB),
                return_exceptions=True,
            )
        assert [each for each in some if isinstance(each, BaseException) and not isinstance(each, OperatorError)] == []
        counts = [each if isinstance(each, int) else len(each) for each in some if not isinstance(each, BaseException)]
        assert sum(counts) == 50
        assert (await store.pets.page(after=0, limit=100, status=None)).pets == pets

    store_at.use(work)


# Removing animals by who added them


def added_by(key: ApiKey, **more: Any) -> PetQuery:
    return PetQuery(added_by=key.id, unedited=True, **more)


async def new_keys(store: Store, count: int) -> list[ApiKey]:
    keys = [new_key("live", "free", now=NOW) for _ in range(count)]
    for key in keys:
        await store.keys.create(key, key.id, BY)
    return keys


def test_matching_animals_are_removed_in_steps_as_one_removal(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        broken, other = await new_keys(store, 2)
        for i in range(60):
            await store.pets.add(NewPet(f"Pet {i}", i), NOW, key_id=(other if i % 4 == 0 else broken).id)
        await store.pets.update(2, PetChanges(name="Edited"), BY)
        rows = await store.transfer.rows(PETS, None, 100)
        found = await store.pets.matching(added_by(broken)._replace(unedited=False))
        assert found == Matching(total=45, edited=1, last_id=60)
        await store.pets.add(NewPet("Later", 1), NOW, key_id=broken.id)
        changes.clear()
        reached: list[int] = []
        removal = await store.removals.remove_matching(added_by(broken), found, ADA, reached.append)
        assert (removal.pets, reached, changes) == (44, [10, 20, 30, 40, 44], ["edited"] * 5)
        assert sum((await store.pets.count()).values()) == 60 + 1 - 44
        left = [pet.name for pet in (await store.pets.search(PetQuery(added_by=broken.id), after=0, limit=9)).pets]
        assert left == ["Edited", "Later"]
        assert (await entries(store))[0] == ("ada", "remove animal", removal.id, f"45 animals added by {broken.id}")
        assert await store.removals.find([removal.id]) == {removal.id: removal}
        assert await store.removals.restore_all(removal.id, BOB) == 44
        assert (await store.transfer.rows(PETS, None, 100))[:60] == rows

    store_at.use(work, changes, SMALL_CHUNKS)


def test_an_animal_that_is_edited_while_others_are_removed_stays(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        (key,) = await new_keys(store, 1)
        for i in range(30):
            await store.pets.add(NewPet(f"Pet {i}", i), NOW, key_id=key.id)
        async with store_at.open() as other:
            search = store.removals._search

            async def edit_then_remove(query: PetQuery, *, after: int, limit: int) -> Found:
                found = await search(query, after=after, limit=limit)
                await other.pets.update(15, PetChanges(name="Edited"), BY)
                return found

            store.removals._search = edit_then_remove
            removal = await store.removals.remove_matching(added_by(key), Matching(30, 0, 30), ADA)
        assert (removal.pets, await names(store)) == (29, ["Edited"])

    store_at.use(work)


def test_creates_continue_while_many_animals_are_removed_and_restored(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        (key,) = await new_keys(store, 1)
        await asyncio.gather(*(store.pets.add(NewPet(f"Pet {i}", i), NOW, key_id=key.id) for i in range(5_000)))
        waits: list[float] = []

        async def create(done: asyncio.Event) -> None:
            async with store_at.open() as other:
                while not done.is_set():
                    began = time.monotonic()
                    await other.pets.add(NewPet("created", 1), NOW, key_id=key.id)
                    waits.append(time.monotonic() - began)

        done = asyncio.Event()
        creating = asyncio.create_task(create(done))
        removal = await store.removals.remove_matching(added_by(key), Matching(5_000, 0, 5_000), ADA)
        assert removal.pets == 5_000
        assert await store.removals.restore_all(removal.id, BOB) == 5_000
        done.set()
        await creating
        assert len(waits) > 3 and max(waits) < 2.0
        assert sum((await store.pets.count()).values()) == 5_000 + len(waits)

    store_at.use(work)


# Who added an animal, and when


def test_the_adder_and_the_time_of_each_animal_are_known(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        (key,) = await new_keys(store, 1)
        with_token = IdempotencyKey(key.id, "token", b"digest")
        await store.pets.add(NewPet("by a key", 1), NOW + 0.9, key_id=key.id)
        await store.pets.add(NewPet("by a key", 1), NOW + 1, with_token, key_id=key.id)
        await store.pets.add_by_hand(NewPet("by hand", 1), Actor("ada", NOW + 2))
        done = await imported(store, NewPet("imported", 1), by=Actor("ada", NOW))
        await store.pets.add(NewPet("by nobody", 1), NOW + 3)
        await store.pets.update(1, PetChanges(name="edited"), BY)
        assert await store.pets.origins(range(1, 9)) == {
            1: Origin(Adder("key", key.id), NOW),
            2: Origin(Adder("key", key.id), NOW + 1),
            3: Origin(Adder("operator", "ada"), NOW + 2),
            4: Origin(Adder("import", done.id), NOW),
            5: Origin(None, NOW + 3),
        }
        for query, ids in (
            (PetQuery(added_by=key.id), [1, 2]),
            (PetQuery(added_by="ada"), [3]),
            (PetQuery(added_by=done.id), [4]),
            (PetQuery(added_by="Ada"), []),
            (PetQuery(added_by="ada\0"), []),
            (PetQuery(since=NOW + 1), [2, 3, 5]),
            (PetQuery(until=NOW + 1), [1, 4]),
            (PetQuery(since=NOW + 1, until=NOW + 3, added_by=key.id), [2]),
            (PetQuery("by", unedited=True), [2, 3, 5]),
        ):
            found = await store.pets.search(query, after=0, limit=9)
            assert [pet.id for pet in found.pets] == ids, query
            assert (await store.pets.newest(query, limit=9)).pets == found.pets[::-1]
            if query.added_by != "ada\0":
                assert (await store.pets.matching(query)).total == len(ids)
        for name in (key.id, "ada", done.id):
            await store.pets.check_adder(name)
        for name in ("bob", "a\0"):
            with pytest.raises(OperatorError, match="is neither the id of a key nor"):
                await store.pets.check_adder(name)

    store_at.use(work)


def test_an_animal_has_its_adder_after_it_was_removed_and_restored(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.pets.add_by_hand(NewPet("by hand", 1), Actor("ada", NOW))
        await store.removals.remove([1], ADA)
        assert await store.pets.origins([1]) == {}
        await store.removals.restore([1], BOB)
        assert await store.pets.origins([1]) == {1: Origin(Adder("operator", "ada"), NOW)}

    store_at.use(work)
