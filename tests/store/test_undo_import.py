"""Undoing imports, on every backend: what is removed, what is kept, and what happens after an interruption."""

import asyncio

import pytest

from harness.stores import BY, NOW, StorePlace, imported, names
from petstore.audit import Actor
from petstore.changes import Change
from petstore.errors import OperatorError
from petstore.imports import Undone
from petstore.pets import NewPet, PetChanges
from petstore.store import Store
from tests.store.test_imports import ADA, LATER, SMALL_CHUNKS, begun, pets, state_of


def test_undo_removes_what_nobody_has_changed_since(store_at: StorePlace) -> None:
    changes: list[Change] = []
    by = Actor("ada", NOW + 9)

    async def work(store: Store) -> None:
        await store.pets.add(NewPet("before", 1), NOW)
        added = await imported(store, *(NewPet(f"imported {i}", i) for i in range(25)), by=ADA, name="animals.jsonl")
        await store.pets.add(NewPet("after", 1), NOW)
        await store.pets.set_status([3], "sold", BY)
        await store.pets.update(5, PetChanges(name="renamed"), BY)
        await store.removals.remove([7], BY)
        await store.removals.restore([7], BY)  # restored unchanged, so undoing the import removes it
        assert await store.imports.undone(added.id) == Undone(removed=0, kept=2, left=23)
        changes.clear()
        assert await store.imports.undo(added.id, by) == Undone(removed=23, kept=2)
        assert await store.imports.undone(added.id) == Undone(removed=23, kept=2)
        assert set(changes) == {"edited"}
        assert await store.imports.kept_ids(added.id, 2) == [3, 5]
        assert await names(store) == ["before", "imported 1", "renamed", "after"]
        found = await store.imports.get(added.id, NOW)
        assert found is not None and (found.state, found.added) == ("undone", 25)
        ((_, recorded),) = (await store.audit.find(limit=1)).entries
        assert recorded == by.entry("undo import", added.id, "animals.jsonl, 23 animals, 2 kept")
        with pytest.raises(OperatorError, match=f"{added.id} has already been undone: 23 removed, 2 kept"):
            await store.imports.undo(added.id, BY)
        with pytest.raises(OperatorError, match="no import has the id imp_unknown in live"):
            await store.imports.undo("imp_unknown", BY)
        assert len((await store.audit.find(action="undo import")).entries) == 1

    store_at.use(work, changes, SMALL_CHUNKS)


def test_ids_of_an_undone_import_are_never_used_again(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        added = await imported(store, *pets("x") * 25)
        await store.imports.undo(added.id, BY)
        assert await names(store) == []

    store_at.use(work, policy=SMALL_CHUNKS)
    created = store_at.use(lambda store: store.pets.add(NewPet("next", 1), NOW))
    assert created.pet.id == 26


def test_animals_that_were_created_between_two_chunks_stay(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        import_id = await begun(store, 2)
        await store.imports.add_chunk(import_id, 0, pets("a"), NOW)
        await store.pets.add(NewPet("created", 1), NOW)
        await store.imports.add_chunk(import_id, 1, pets("b"), NOW)
        assert await store.imports.undo(import_id, BY)
        assert await names(store) == ["created"]

    store_at.use(work)


def test_animal_that_was_removed_by_hand_stays_removed(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        added = await imported(store, *pets("a", "b"))
        removed = await store.removals.remove([1], BY)
        assert await store.imports.undo(added.id, BY) == Undone(removed=1, kept=0), "the other was removed by hand"
        assert await store.imports.undone(added.id) == Undone(removed=2, kept=0)
        assert await store.removals.restore([1], BY) == removed.pets
        assert await names(store) == ["a"]
        assert await store.imports.undone(added.id) == Undone(removed=1, kept=0, left=1)

    store_at.use(work)


def test_running_import_can_be_undone_and_then_adds_nothing_more(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        import_id = await begun(store)
        await store.imports.add_chunk(import_id, 0, pets("a", "b"), NOW)
        async with store_at.open() as other:
            assert await other.imports.undo(import_id, BY)
        assert await names(store) == []
        assert not await store.imports.add_chunk(import_id, 2, pets("c", "d"), NOW)
        assert (await names(store), await state_of(store, import_id, LATER)) == ([], ("undone", 2))

    store_at.use(work)


def test_undo_during_the_import_removes_all_of_it(store_at: StorePlace) -> None:
    """A chunk that is in flight when the undo begins is either removed or refused."""

    async def work(store: Store) -> None:
        async with store_at.open(policy=SMALL_CHUNKS) as other:
            importing = asyncio.create_task(imported(store, *pets("x") * 5_000))
            while not (running := await other.imports.page(NOW)) or running[0].added < 50:
                await asyncio.sleep(0)
            assert await other.imports.undo(running[0].id, BY)
            with pytest.raises(AssertionError):  # a chunk was refused
                await importing
            assert await names(other) == []

    store_at.use(work, policy=SMALL_CHUNKS)


def test_interrupted_import_can_be_undone(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        import_id = await begun(store)
        await store.imports.add_chunk(import_id, 0, pets("a"), NOW)
        await store.imports.add_chunk(import_id, 1, pets("b"), NOW)
        assert await state_of(store, import_id, LATER) == ("interrupted", 2)
        assert await store.imports.undo(import_id, BY)
        assert await names(store) == []

    store_at.use(work)


def test_undo_that_is_cancelled_can_be_resumed_and_returns_the_totals(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        added = await imported(store, *pets("x") * 500)
        await store.pets.set_status([5, 495], "sold", BY)
        changes.clear()
        undoing = asyncio.create_task(store.imports.undo(added.id, BY))
        while not changes:
            await asyncio.sleep(0)
        undoing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await undoing
        so_far = await store.imports.undone(added.id)
        assert so_far.removed > 0 and so_far.left > 0
        assert so_far.removed + so_far.left == 498 and so_far.kept == 2
        found = await store.imports.get(added.id, NOW)
        assert found is not None and found.state == "undoing"
        entries = len((await store.audit.find()).entries)
        async with store_at.open() as other:  # another process resumes it, with larger chunks
            assert await other.imports.undo(added.id, BY) == Undone(removed=498, kept=2)
        assert await store.imports.undone(added.id) == Undone(removed=498, kept=2)
        assert [pet.id for pet in (await store.pets.page(after=0, limit=9, status=None)).pets] == [5, 495]
        assert len((await store.audit.find()).entries) == entries, "the undoing is recorded once"

    store_at.use(work, changes, SMALL_CHUNKS)
