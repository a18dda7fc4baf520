"""Imports, on every backend: all or nothing, in order, without keeping others waiting."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from petstore.audit import AuditEntry
from petstore.changes import Change
from petstore.errors import OperatorError, Unavailable
from petstore.pets import STATUSES, Import, NewPet, Pet, PetChanges, Undone
from petstore.store import Store, StorePolicy
from petstore.store.schema import COUNTERS, IMPORT_ROWS, IMPORTS, Row
from tests.places import ENTRY, NOW, PATIENT, StorePlace, WatchedConnection, batch, batches, names, sqlite_store

SMALL_CHUNKS = StorePolicy(bounds=PATIENT._replace(import_chunk=10))
IMPORT = AuditEntry(NOW, "ada", "import", "animals.jsonl")


async def everything(store: Store, limit: int = 7) -> list[Pet]:
    """All animals, page by page."""
    found: list[Pet] = []
    more = True
    while more:
        page, more = await store.pets.page(after=found[-1].id if found else 0, limit=limit, status=None)
        found += page
    return found


async def left_behind(store: Store) -> tuple[int, int]:
    """How many imports there are, and how many of their rows are not animals yet."""
    return len(await store.transfer.rows(IMPORTS, None, 10)), len(await store.transfer.rows(IMPORT_ROWS, None, 10**6))


def test_import_adds_all_animals_and_is_known_by_its_id(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await store.pets.add(NewPet("Rex", 1), NOW)
        changes.clear()
        added = await store.import_pets(batches("Mia", "Bo", "Kim"), IMPORT, lambda: "the digest")
        assert added.id.startswith("imp_") and len(added.id) == 16
        assert added == Import(added.id, NOW, "ada", "animals.jsonl", "the digest", 3, 2, 4, "done")
        assert changes == ["catalogue"]
        assert await names(store) == ["Rex", "Mia", "Bo", "Kim"]
        assert await store.imports.get(added.id) == added
        assert await store.imports.get("imp_unknown") is None
        ((_, entry),) = (await store.audit.find()).entries
        assert entry == AuditEntry(NOW, "ada", "import", "animals.jsonl", f"3 animals, {added.id}, ids 2 to 4")
        assert await left_behind(store) == (1, 0)
        assert (await store.pets.add(NewPet("Next", 1), NOW)).pet.id == 5

    store_at.use(work, changes)


def test_import_of_nothing_is_an_import(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        added = await store.import_pets(batch(), IMPORT)
        assert (added.count, added.first_id, added.last_id, added.state) == (0, None, None, "done")
        assert await store.imports.undo(added.id, ENTRY) == Undone(0, 0)
        assert await names(store) == []

    store_at.use(work)


def test_imports_come_newest_first_page_by_page(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        ids = [
            (await store.import_pets(batches("x"), AuditEntry(NOW + number, "ada", "import", "x"))).id
            for number in range(5)
        ]
        seen: list[Import] = []
        while page := await store.imports.page(before=(seen[-1].at, seen[-1].id) if seen else None, limit=2):
            seen += page
        assert [each.id for each in seen] == ids[::-1]

    store_at.use(work)


def test_import_that_fails_leaves_nothing(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def broken() -> AsyncIterator[list[NewPet]]:
        yield [NewPet("Rex", 1)] * 55
        raise OperatorError("line 56: bad")

    async def work(store: Store) -> None:
        with pytest.raises(OperatorError):
            await store.import_pets(broken(), ENTRY)
        assert sum((await store.pets.count()).values()) == 0
        assert changes == []
        assert await left_behind(store) == (0, 0)
        assert (await store.audit.find()).entries == []

    store_at.use(work, changes, SMALL_CHUNKS)


def test_import_that_is_cancelled_leaves_nothing_visible_and_is_tidied_up(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        loaded = asyncio.Event()

        async def endless() -> AsyncIterator[list[NewPet]]:
            yield [NewPet("Rex", 1)] * 25
            loaded.set()
            await asyncio.Event().wait()

        importing = asyncio.create_task(store.import_pets(endless(), ENTRY))
        await loaded.wait()
        importing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await importing
        assert await names(store) == []
        await store.tidy()
        assert await left_behind(store) == (0, 0)

    store_at.use(work, policy=SMALL_CHUNKS)


def test_readers_see_nothing_of_an_import_and_then_all_of_it(store_at: StorePlace) -> None:
    """A reader that follows the catalogue by its cursor meets every animal, whatever is added meanwhile."""
    count = 400

    async def work(store: Store) -> None:
        async with store_at.open(policy=SMALL_CHUNKS) as other:
            imported, created_all = asyncio.Event(), asyncio.Event()
            seen: list[Pet] = []
            created: list[int] = []

            async def follow() -> None:
                while True:
                    last_turn = created_all.is_set()
                    page = await other.pets.page(after=seen[-1].id if seen else 0, limit=50, status=None)
                    seen.extend(page.pets)
                    visible = (await other.pets.count())["pending"]
                    assert visible in (0, count), f"{visible} animals of the import are visible"
                    if last_turn and not page.more:
                        return
                    await asyncio.sleep(0)

            async def create() -> None:
                while not imported.is_set():
                    created.append((await other.pets.add(NewPet("created", 1), NOW)).pet.id)
                    await asyncio.sleep(0)

            async def load() -> AsyncIterator[list[NewPet]]:
                for number in range(0, count, 20):
                    yield [NewPet(f"imported {number}", number, "pending")] * 20
                    await asyncio.sleep(0)

            following, creating = asyncio.create_task(follow()), asyncio.create_task(create())
            added = await store.import_pets(load(), IMPORT)
            imported.set()
            await creating
            created_all.set()
            await following
            assert [pet.id for pet in seen] == [pet.id for pet in await everything(store, 1_000)]
            assert len(seen) == count + len(created) and len(created) > 0
            ids = [pet.id for pet in seen if pet.status == "pending"]
            assert ids == [*range(ids[0], ids[0] + count)] and (ids[0], ids[-1]) == (added.first_id, added.last_id)

    store_at.use(work, policy=SMALL_CHUNKS)


def test_imports_at_the_same_time_both_arrive(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with store_at.open(policy=SMALL_CHUNKS) as other:
            first, second = await asyncio.gather(
                store.import_pets(batch(*[NewPet("a", 1)] * 35), IMPORT),
                other.import_pets(batch(*[NewPet("b", 1)] * 35), IMPORT),
            )
        assert sorted(await names(store)) == ["a"] * 35 + ["b"] * 35
        assert {first.first_id, second.first_id} == {1, 36}
        assert await left_behind(store) == (2, 0)

    store_at.use(work, policy=SMALL_CHUNKS)


# Interrupted: the process that imported was killed, and left its rows.


def import_row(state: str, first_id: int | None, count: int, touched: float = 0.0) -> Row:
    last_id = None if first_id is None else first_id + count - 1
    return ("imp_interrupted", NOW, "ada", "animals.jsonl", "", count, first_id, last_id, state, touched)


async def interrupted(store: Store, count: int = 30) -> list[Pet]:
    """An import that every reader sees, of which nothing is moved yet, between animals that clients have added."""
    before = [(await store.pets.add(NewPet(f"before {i}", i), NOW)).pet for i in range(5)]
    imported = [Pet(6 + i, f"imported {i}", i, STATUSES[i % 3]) for i in range(count)]
    rows = sorted(("imp_interrupted", pet.status, pet.id - 6, pet.name, pet.category_id) for pet in imported)
    await store.transfer.put_rows(IMPORT_ROWS, rows)
    await store.transfer.put_rows(COUNTERS, [("pets", 5 + count)])
    await store.transfer.put_rows(IMPORTS, [import_row("moving", 6, count)])
    await store.transfer.set_copying_from(None)  # as at the end of a copy
    after = [(await store.pets.add(NewPet(f"after {i}", i), NOW)).pet for i in range(5)]
    assert after[0].id == 6 + count
    return before + imported + after


def test_animals_of_an_import_are_read_like_others_before_they_are_moved(store_at: StorePlace) -> None:
    async def check(store: Store, pets: list[Pet]) -> None:
        for limit in (1, 4, 7, 100):
            assert await everything(store, limit) == pets
        for status in STATUSES:
            found = [pet for pet in pets if pet.status == status]
            assert (await store.pets.page(after=0, limit=100, status=status)).pets == found
            assert await store.pets.page(after=found[1].id, limit=2, status=status) == (found[2:4], True)
            assert (await store.pets.newest(limit=100, status=status)).pets == found[::-1]
        assert [await store.pets.get(pet.id) for pet in pets] == pets
        assert await store.pets.get(len(pets) + 1) is None
        assert (await store.pets.newest(limit=1)).pets == pets[-1:]
        assert (await store.pets.search("IMPORTED", after=8, limit=5, status=None)).pets == pets[8:13]
        assert (await store.pets.newest(limit=100)).pets == pets[::-1]
        assert await store.pets.count() == {status: sum(pet.status == status for pet in pets) for status in STATUSES}

    async def work(store: Store) -> None:
        pets = await interrupted(store)
        await check(store, pets)
        await store.tidy()
        assert await left_behind(store) == (1, 0)
        await check(store, pets)

    store_at.use(work, policy=SMALL_CHUNKS)


def test_animals_can_be_changed_and_removed_before_they_are_moved(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        pets = await interrupted(store)
        assert await store.pets.remove([8, 40], ENTRY) == [pets[7], pets[39]]
        assert await store.pets.update(9, PetChanges(name="renamed"), ENTRY) is not None
        assert len(await store.pets.set_status([5, 10, 11], "sold", ENTRY)) == 3
        pets = await everything(store)
        assert [pet.id for pet in pets] == [*range(1, 8), *range(9, 40)]
        await store.tidy()
        assert await everything(store) == pets
        assert pets[7].name == "renamed" and {pet.status for pet in pets[8:10]} == {"sold"}
        assert await store.imports.undo("imp_interrupted", ENTRY) == Undone(removed=27, kept=2)  # 11 was sold before

    store_at.use(work, policy=SMALL_CHUNKS)


def test_moving_goes_on_only_when_the_importer_gives_no_sign_of_life(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.transfer.put_rows(IMPORT_ROWS, [("imp_interrupted", "sold", place, "x", 1) for place in range(20)])
        await store.transfer.put_rows(COUNTERS, [("pets", 20)])
        await store.transfer.put_rows(IMPORTS, [import_row("moving", 1, 20, touched=9e9)])
        await store.tidy()
        assert await left_behind(store) == (1, 20)
        await store.import_pets(batches("another"), IMPORT)  # which cannot wait
        assert await left_behind(store) == (2, 0)
        assert (await store.pets.newest(limit=1)).pets[0].id == 21

    store_at.use(work, policy=SMALL_CHUNKS)


def test_rows_of_an_import_that_was_interrupted_while_it_was_loaded_are_removed(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for import_id, touched in (("imp_alive", 9e9), ("imp_interrupted", 0.0)):
            await store.transfer.put_rows(IMPORT_ROWS, [(import_id, "sold", place, "x", 1) for place in range(25)])
            await store.transfer.put_rows(IMPORTS, [(import_id, *import_row("loading", None, 0, touched)[1:])])
        assert await store.imports.page() == [] and await names(store) == []
        await store.tidy()
        assert await left_behind(store) == (1, 25)
        assert await store.imports.get("imp_alive") is not None

    store_at.use(work, policy=SMALL_CHUNKS)


@pytest.mark.parametrize("more", [0, 20])
def test_importer_that_was_given_up_does_not_publish_what_is_left(store_at: StorePlace, more: int) -> None:
    async def work(store: Store) -> None:
        async def paused() -> AsyncIterator[list[NewPet]]:
            yield [NewPet("x", 1)] * 20
            store_at.by_hand("UPDATE imports SET touched = 0")
            async with store_at.open(policy=SMALL_CHUNKS) as other:
                await other.tidy()
            yield [NewPet("x", 1)] * more

        with pytest.raises(Unavailable, match="no sign of life"):
            await store.import_pets(paused(), IMPORT)
        assert await names(store) == []
        assert await left_behind(store) == (0, 0)

    store_at.use(work, policy=SMALL_CHUNKS)


# Waiting


def test_no_transaction_of_an_import_is_long(tmp_path: Path) -> None:
    """So a create waits for one chunk at most, however large the file."""
    sizes: list[int] = []

    class Counting(WatchedConnection):
        changes_at_begin = 0

        def before(self, sql: str) -> None:
            if sql == "BEGIN IMMEDIATE":
                self.changes_at_begin = self.total_changes()

        def after(self, sql: str) -> None:
            if sql == "COMMIT":
                sizes.append(self.total_changes() - self.changes_at_begin)

    async def work() -> None:
        async with sqlite_store(tmp_path, PATIENT._replace(import_chunk=10), Counting) as store:
            added = await store.import_pets(batch(*[NewPet("x", 1)] * 1_000), IMPORT)
            await store.imports.undo(added.id, ENTRY)

    asyncio.run(work())
    assert len(sizes) >= 300
    assert max(sizes) <= 25  # a chunk in one table, and out of another


def test_creates_of_others_go_on_during_an_import(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with store_at.open() as other:
            importing = asyncio.create_task(
                store.import_pets(batch(*(NewPet(f"imported {i}", i) for i in range(30_000))), IMPORT)
            )
            created = 0
            while not importing.done():
                await other.pets.add(NewPet("created", 1), NOW)
                created += 1
            assert (await importing).count == 30_000
            assert created > 10
            assert sum((await store.pets.count()).values()) == 30_000 + created

    store_at.use(work)
