"""The undoing of imports, on every backend: what goes, what stays, and what happens after an interruption."""

import asyncio

import msgspec
import pytest

from petstore.audit import AuditEntry
from petstore.changes import Change
from petstore.pets import NewPet, PetChanges, Undone
from petstore.store import Store
from petstore.store.schema import IMPORTS
from tests.places import ENTRY, NOW, StorePlace, batch, names
from tests.test_store_imports import IMPORT, SMALL_CHUNKS, everything, import_row


def test_undo_removes_what_nobody_has_changed_since(store_at: StorePlace) -> None:
    changes: list[Change] = []
    entry = AuditEntry(NOW + 9, "ada", "undo import", "x", "animals.jsonl")

    async def work(store: Store) -> None:
        await store.pets.add(NewPet("before", 1), NOW)
        added = await store.import_pets(batch(*(NewPet(f"imported {i}", i) for i in range(25))), IMPORT)
        await store.pets.add(NewPet("after", 1), NOW)
        await store.pets.set_status([3], "sold", ENTRY)
        await store.pets.update(5, PetChanges(name="renamed"), ENTRY)
        await store.pets.remove([7], ENTRY)
        changes.clear()
        assert await store.imports.undone(added.id) == Undone(removed=0, kept=2, left=22)
        assert await store.imports.undo(added.id, entry) == Undone(removed=22, kept=2)
        assert await store.imports.undone(added.id) == Undone(removed=22, kept=2)
        assert set(changes) == {"catalogue"}
        assert await names(store) == ["before", "imported 1", "renamed", "after"]
        found = await store.imports.get(added.id)
        assert found is not None and found.state == "undone"
        ((_, recorded),) = (await store.audit.find(limit=1)).entries
        assert recorded == msgspec.structs.replace(entry, detail="animals.jsonl, 22 animals to remove, 2 stay")
        assert await store.imports.undo(added.id, ENTRY) is None
        assert await store.imports.undo("imp_unknown", ENTRY) is None
        assert await store.imports.undone("imp_unknown") is None
        assert (await store.pets.add(NewPet("next", 1), NOW)).pet.id == 28

    store_at.use(work, changes, SMALL_CHUNKS)


def test_undo_that_was_interrupted_is_finished(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for i in range(30):
            await store.pets.add(NewPet(f"Pet {i}", i), NOW)
        await store.transfer.put_rows(IMPORTS, [import_row("undoing", 6, 20)])
        await store.tidy()
        assert [pet.id for pet in await everything(store)] == [*range(1, 6), *range(26, 31)]
        (found,) = await store.imports.page()
        assert found.state == "undone"

    store_at.use(work, policy=SMALL_CHUNKS)


def test_undo_that_is_cancelled_goes_on_and_returns_the_totals(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        added = await store.import_pets(batch(*[NewPet("x", 1)] * 500), IMPORT)
        await store.pets.set_status([5, 495], "sold", ENTRY)
        changes.clear()
        undoing = asyncio.create_task(store.imports.undo(added.id, ENTRY))
        while not changes:
            await asyncio.sleep(0)
        undoing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await undoing
        so_far = await store.imports.undone(added.id)
        assert so_far is not None and so_far.removed > 0 and so_far.left > 0
        assert so_far.removed + so_far.left == 498 and so_far.kept == 2
        found = await store.imports.get(added.id)
        assert found is not None and found.state == "undoing"
        entries = len((await store.audit.find()).entries)
        assert await store.imports.undo(added.id, ENTRY) == Undone(removed=498, kept=2)
        assert [pet.id for pet in await everything(store)] == [5, 495]
        assert len((await store.audit.find()).entries) == entries, "the undoing is recorded once"

    store_at.use(work, changes, SMALL_CHUNKS)
