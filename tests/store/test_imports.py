"""Imports, on every backend. Each chunk becomes visible when it commits. Any process can add chunks, but none twice."""

import asyncio
from pathlib import Path

import pytest

from harness.stores import (
    BY,
    NOW,
    PATIENT,
    REFUSED_ROW,
    StorePlace,
    WatchedConnection,
    imported,
    names,
    sqlite_store,
)
from petstore.audit import Actor
from petstore.changes import Change
from petstore.errors import Unavailable
from petstore.imports import Import
from petstore.pets import NewPet, Pet
from petstore.store import Store, StorePolicy
from petstore.store.imports import INTERRUPTED_AFTER
from petstore.store.schema import IMPORT_CHUNKS

SMALL_CHUNKS = StorePolicy(bounds=PATIENT._replace(import_chunk=10))
ADA = Actor("ada", NOW)
LATER = NOW + INTERRUPTED_AFTER + 1


def pets(*wanted: str) -> list[NewPet]:
    return [NewPet(name, 1) for name in wanted]


async def begun(store: Store, total: int = 4, sha256: str = "the digest") -> str:
    """Begins an import. Returns its id."""
    found = await store.imports.begin("animals.jsonl", sha256, total, ADA)
    assert (found.state, found.added) == ("running", 0)
    return found.id


async def state_of(store: Store, import_id: str, now: float = NOW) -> tuple[str, int]:
    """Returns the import's state, and how many animals it has added."""
    found = await store.imports.get(import_id, now)
    assert found is not None
    return found.state, found.added


def test_import_adds_all_animals_and_is_known_by_its_id(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await store.pets.add(NewPet("Rex", 1), NOW)
        changes.clear()
        added = await imported(store, *pets("Mia", "Bo", "Kim"), by=ADA, name="animals.jsonl", sha256="the digest")
        assert added.id.startswith("imp_") and len(added.id) == 16
        assert added == Import(added.id, NOW, "ada", "animals.jsonl", "the digest", 3, 3, "done")
        assert changes == ["added"]
        assert await names(store) == ["Rex", "Mia", "Bo", "Kim"]
        assert await store.imports.get("imp_unknown", NOW) is None
        ((_, entry),) = (await store.audit.find()).entries
        assert entry == ADA.entry("import", "animals.jsonl", f"file with 3 animals, {added.id}")
        assert (await store.pets.add(NewPet("Next", 1), NOW)).pet.id == 5

    store_at.use(work, changes)


def test_imports_come_newest_first_page_by_page(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        ids = [(await imported(store, NewPet("x", 1), by=Actor("ada", NOW + number))).id for number in range(5)]
        seen: list[Import] = []
        while page := await store.imports.page(NOW, before=(seen[-1].at, seen[-1].id) if seen else None, limit=2):
            seen += page
        assert [each.id for each in seen] == ids[::-1]

    store_at.use(work)


def test_each_chunk_is_visible_and_announced_when_it_commits(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        async with store_at.open() as other:
            import_id = await begun(store)
            assert (await state_of(other, import_id), changes) == (("running", 0), [])
            assert await store.imports.add_chunk(import_id, 0, pets("a", "b"), NOW)
            assert (await names(other), changes) == (["a", "b"], ["added"])
            assert await state_of(other, import_id) == ("running", 2)
            await other.pets.add(NewPet("created", 1), NOW)
            assert await store.imports.add_chunk(import_id, 2, pets("c", "d"), NOW)
            assert await names(other) == ["a", "b", "created", "c", "d"]
            assert (await state_of(other, import_id), changes) == (("done", 4), ["added", "added"])

    store_at.use(work, changes)


def test_import_is_interrupted_a_minute_after_its_last_chunk(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        import_id = await begun(store, 2)
        assert await state_of(store, import_id, NOW + INTERRUPTED_AFTER) == ("running", 0)
        assert await state_of(store, import_id, LATER) == ("interrupted", 0)
        assert await store.imports.add_chunk(import_id, 0, pets("a"), NOW + 50)
        assert await state_of(store, import_id, LATER) == ("running", 1)
        assert [each.state for each in await store.imports.page(LATER + 50)] == ["interrupted"]
        assert await store.imports.add_chunk(import_id, 1, pets("b"), LATER + 50), "it can be resumed at any time"
        assert await state_of(store, import_id, LATER + 9e9) == ("done", 2)

    store_at.use(work)


def test_import_of_no_animals_is_done(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        found = await imported(store)
        assert (found.state, found.added, found.total) == ("done", 0, 0)
        assert await store.imports.undo(found.id, BY)

    store_at.use(work)


def test_import_of_the_same_bytes_is_found_unless_it_was_undone(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        assert await store.imports.of_file("a", NOW) is None
        first = await imported(store, *pets("Rex"), sha256="a")
        second = await imported(store, *pets("Rex"), sha256="a", by=ADA, repeats=first.id)
        await imported(store, *pets("Rex"), sha256="b")
        assert await store.imports.of_file("a", NOW) == second
        await store.imports.undo(second.id, BY)
        assert await store.imports.of_file("a", NOW) == first
        await store.imports.undo(first.id, BY)
        assert await store.imports.of_file("a", NOW) is None

    store_at.use(work)


# Several processes


def test_the_same_bytes_join_the_running_import(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with store_at.open() as other:
            found = await asyncio.gather(
                *(
                    each.imports.begin("animals.jsonl", "the digest", 2, ADA)
                    for each in (store, other)
                    for _ in range(4)
                )
            )
            (import_id,) = {each.id for each in found}
            assert len(await store.imports.page(NOW)) == len((await store.audit.find()).entries) == 1
            assert await begun(store, 2, "another digest") != import_id
            assert await store.imports.add_chunk(import_id, 0, pets("a"), NOW)
            joined = await other.imports.begin("animals.jsonl", "the digest", 2, Actor("ada", LATER))
            assert (joined.id, joined.added, joined.state) == (import_id, 1, "interrupted")

    store_at.use(work)


def test_an_import_is_repeated_only_if_the_operator_confirmed_it(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        first = await imported(store, *pets("a"), sha256="a")
        assert await store.imports.begin("animals.jsonl", "a", 1, ADA) == first
        assert await store.imports.begin("animals.jsonl", "a", 1, ADA, "imp_unknown") == first
        second = await imported(store, *pets("a"), sha256="a", by=ADA, repeats=first.id)
        assert second.id != first.id
        assert await store.imports.begin("animals.jsonl", "a", 1, ADA, first.id) == second, (
            "confirmed before the second one"
        )
        assert len(await store.imports.page(NOW)) == len((await store.audit.find()).entries) == 2
        await store.imports.undo(second.id, BY)
        assert await store.imports.begin("animals.jsonl", "a", 1, ADA, second.id) == first
        await store.imports.undo(first.id, BY)
        assert (await store.imports.begin("animals.jsonl", "a", 1, ADA)).state == "running"

    store_at.use(work)


def test_imports_that_begin_and_finish_at_the_same_time_add_the_file_once(store_at: StorePlace) -> None:
    """A process that found no import must not begin one after another process has finished importing the file."""

    async def work(store: Store) -> None:
        async with store_at.open() as other:

            async def run(each: Store) -> None:
                found = await each.imports.begin("animals.jsonl", "the digest", 1, ADA)
                if found.state == "running":
                    await each.imports.add_chunk(found.id, 0, pets("a"), NOW)

            await asyncio.gather(*(run(each) for each in (store, other) for _ in range(10)))
            assert await names(store) == ["a"]
            assert [each.state for each in await store.imports.page(NOW)] == ["done"]

    store_at.use(work)


def test_a_chunk_is_added_only_where_the_import_has_arrived(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        import_id = await begun(store)
        assert await store.imports.add_chunk(import_id, 0, pets("a", "b"), NOW)
        for place in (0, 1, 3):
            assert not await store.imports.add_chunk(import_id, place, pets("x"), NOW)
        assert not await store.imports.add_chunk("imp_unknown", 0, pets("x"), NOW)
        assert (await state_of(store, import_id), await names(store)) == (("running", 2), ["a", "b"])
        assert await store.imports.add_chunk(import_id, 2, pets("c", "d"), NOW)
        assert not await store.imports.add_chunk(import_id, 4, pets("x"), NOW), "it is done"
        assert await names(store) == ["a", "b", "c", "d"]

    store_at.use(work)


def test_of_several_processes_one_adds_a_chunk(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        import_id = await begun(store)
        async with store_at.open() as other:
            sizes = (1, 2, 3, 4)
            adding = (
                each.imports.add_chunk(import_id, 0, pets(*"abcd")[:size], NOW)
                for each in (store, other)
                for size in sizes
            )
            results = zip(sizes * 2, await asyncio.gather(*adding), strict=True)
            (size,) = [size for size, is_added in results if is_added]
            assert await names(store) == list("abcd")[:size]

    store_at.use(work)


# A commit whose outcome is unknown


def test_chunk_that_is_there_already_is_not_added_again(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        import_id = await begun(store)
        assert await store.imports.add_chunk(import_id, 0, pets("a", "b"), NOW)
        changes.clear()
        assert not await store.imports.add_chunk(import_id, 0, pets("a", "b"), NOW)
        assert await names(store) == ["a", "b"]
        assert changes == ["added"], "the process that added it may have died before its announcement"

    store_at.use(work, changes)


def test_the_tables_hold_no_chunk_twice(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        import_id = await begun(store)
        await store.imports.add_chunk(import_id, 0, pets("a", "b"), NOW)
        with pytest.raises(REFUSED_ROW):
            await store.transfer.put_rows(IMPORT_CHUNKS, [(import_id, 0, 7, 2)])

    store_at.use(work)


def test_chunk_whose_commit_was_not_answered_counts_as_added(tmp_path: Path) -> None:
    class Lost(WatchedConnection):
        """Loses the reply to the commit of a chunk."""

        in_chunk = False

        def after(self, sql: str) -> None:
            self.in_chunk = self.in_chunk or sql.startswith("UPDATE main.imports")
            if sql == "COMMIT" and self.in_chunk:
                self.in_chunk = False
                raise Unavailable("the answer was lost")

    async def work() -> None:
        async with sqlite_store(tmp_path) as store:
            import_id = await begun(store)
        async with sqlite_store(tmp_path, kind=Lost) as store:
            with pytest.raises(Unavailable):
                await store.imports.add_chunk(import_id, 0, pets("a", "b"), NOW)
        async with sqlite_store(tmp_path) as store:
            assert await state_of(store, import_id) == ("running", 2)
            assert not await store.imports.add_chunk(import_id, 0, pets("a", "b"), NOW)
            assert await names(store) == ["a", "b"]

    asyncio.run(work())


# Concurrent requests


def test_readers_who_follow_the_cursor_meet_every_animal(store_at: StorePlace) -> None:
    """Concurrent imports and creates do not matter, because ids are assigned and committed in the same order."""
    count = 400

    async def work(store: Store) -> None:
        async with store_at.open(policy=SMALL_CHUNKS) as other:
            done, created = asyncio.Event(), list[int]()
            seen: list[Pet] = []

            async def follow() -> None:
                while True:
                    last_turn = done.is_set()
                    page = await other.pets.page(after=seen[-1].id if seen else 0, limit=50, status=None)
                    seen.extend(page.pets)
                    if last_turn and not page.more:
                        return
                    await asyncio.sleep(0)

            async def create() -> None:
                while not importing.done():
                    created.append((await other.pets.add(NewPet("created", 1), NOW)).pet.id)

            following = asyncio.create_task(follow())
            importing = asyncio.create_task(imported(store, *[NewPet("imported", 1, "pending")] * count))
            await create()
            done.set()
            await following
            assert (await importing).added == count
            every = (await store.pets.page(after=0, limit=10**6, status=None)).pets
            assert seen == every and len(every) == count + len(created) and created

    store_at.use(work, policy=SMALL_CHUNKS)


def test_imports_at_the_same_time_both_arrive(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with store_at.open(policy=SMALL_CHUNKS) as other:
            await asyncio.gather(
                imported(store, *pets("a") * 35, sha256="a"), imported(other, *pets("b") * 35, sha256="b")
            )
        assert sorted(await names(store)) == ["a"] * 35 + ["b"] * 35

    store_at.use(work, policy=SMALL_CHUNKS)


def test_no_transaction_of_an_import_or_of_its_undoing_is_long(tmp_path: Path) -> None:
    """A create request therefore waits for at most one chunk, however large the file is."""
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
        async with sqlite_store(tmp_path, SMALL_CHUNKS.bounds, Counting) as store:
            added = await imported(store, *pets("x") * 1_000)
            await store.imports.undo(added.id, BY)

    asyncio.run(work())
    assert len(sizes) >= 200
    assert max(sizes) <= 14  # a chunk of 10 animals, the import, its adder, the chunk and the last id
