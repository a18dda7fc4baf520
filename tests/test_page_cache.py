"""The page cache: how much it keeps, for how long, and which requests share a read."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from petstore.audit import AuditEntry
from petstore.errors import Unavailable
from petstore.observability import metrics
from petstore.pets import NewPet, Page
from petstore.store import Store
from petstore.web.page_cache import OVERHEAD, PageCache, Rendered
from petstore.web.requests import ListQuery
from tests.in_process import NOW, Clock, Running, Wrapped, use_app


class CountedReads:
    """Counts the pages that were read from the store."""

    def __init__(self) -> None:
        self.reads = 0

    def wrap(self, store: Store) -> Any:
        def counted(read: Any) -> Any:
            async def work(*arguments: Any, **named: Any) -> Any:
                self.reads += 1
                return await read(*arguments, **named)

            return work

        return Wrapped(store, page=counted(store.page))


def test_pages_are_read_once_until_something_changes(tmp_path: Path) -> None:
    counted = CountedReads()

    async def work(running: Running) -> None:
        store = running.store
        first = (await store.pets.add(NewPet("Rex", 1), NOW)).pet.id

        async def reads() -> int:
            before = counted.reads
            for query in ["limit=1", "limit=2"] * 3:
                assert (await running.ask("/v1/pets", query)).status == 200
            return counted.reads - before

        assert await reads() == 2
        assert await reads() == 0
        await store.pets.add(NewPet("Mia", 1), NOW)
        assert await reads() == 2
        await store.pets.add(NewPet("Leo", 1), NOW)
        assert await reads() == 1  # the page of one animal has a successor by now
        await store.pets.add(NewPet("Kim", 1), NOW)
        assert await reads() == 0
        await store.pets.set_status([first], "sold", AuditEntry(NOW, "a test", "set status", str(first)))
        assert await reads() == 2
        assert await reads() == 0

    use_app(tmp_path, work, wrap_store=counted.wrap)


def test_hits_and_misses_are_counted(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        before = dict(metrics.PAGE_CACHE.cells)
        for _ in range(5):
            await running.ask("/v1/pets")
        running.app.settle(0.0)
        running.app.settle(0.0)  # nothing since
        grown = {cell: value - before.get(cell, 0) for cell, value in metrics.PAGE_CACHE.cells.items()}
        assert grown["live", "hit"] == 4 and grown["live", "miss"] == 1

    use_app(tmp_path, work)


def test_the_cache_stays_within_its_bound() -> None:
    async def latest_change() -> int:
        return 1

    async def work() -> None:
        cache = PageCache(latest_change, bytes_max=3 * (2 + OVERHEAD))
        held = []
        for limit in range(1, 8):
            token = await cache.refresh(7, NOW)
            cache.put(ListQuery(limit, None, 0), Rendered("", b"[]", '"1"'), token)
            held.append(sum(cache.get(ListQuery(each, None, 0), 7, NOW) is not None for each in range(1, 8)))
        assert held == [1, 2, 3, 0, 1, 2, 3]

    asyncio.run(work())


def test_a_page_that_many_requests_put_counts_once() -> None:
    async def work() -> None:
        changes = Changes()
        cache = PageCache(changes.latest, bytes_max=3 * (4 + OVERHEAD))
        for version in range(7, 20):
            token = await cache.refresh(version, NOW)
            for _ in range(10):
                fill(cache, token)
            assert kept(cache, version) == set(ALL)
            changes.answers.clear()
            asking = asyncio.create_task(cache.refresh(version, NOW + version))
            await asyncio.sleep(0)
            fill(cache, await cache.refresh(version, NOW + version))  # while the store is asked
            changes.answers.set()
            await asking

    asyncio.run(work())


PAGE, LAST_PAGE = ListQuery(1, None, 0), ListQuery(1, None, 5)
ALL = {PAGE: Rendered("", b"page", '"1"'), LAST_PAGE: Rendered("", b"last", '"2"', ends_list=True)}


class Changes:
    """The latest change, as a store tells it; it can be made to wait, and to fail."""

    def __init__(self) -> None:
        self.number = 1
        self.answers = asyncio.Event()
        self.answers.set()
        self.fails = False

    async def latest(self) -> int:
        number = self.number
        await self.answers.wait()
        if self.fails:
            raise Unavailable("a test")
        return number


def kept(cache: PageCache, version: int) -> set[Any]:
    return {name for name in ALL if cache.get(name, version, NOW)}


def fill(cache: PageCache, token: Any) -> None:
    for name, rendered in ALL.items():
        cache.put(name, rendered, token)


def test_a_new_animal_drops_only_what_ends_a_list_and_a_change_drops_all() -> None:
    async def work() -> None:
        changes = Changes()
        cache = PageCache(changes.latest)
        fill(cache, await cache.refresh(7, NOW))
        assert kept(cache, 7) == set(ALL)
        await cache.refresh(8, NOW)
        assert kept(cache, 8) == {PAGE}
        changes.number = 2
        await cache.refresh(9, NOW)
        assert kept(cache, 9) == set()

    asyncio.run(work())


def test_what_was_read_before_a_change_is_not_kept() -> None:
    async def work() -> None:
        changes = Changes()
        cache = PageCache(changes.latest)
        old = await cache.refresh(7, NOW)
        await cache.refresh(8, NOW)  # another request has seen a newer version
        fill(cache, old)
        assert kept(cache, 8) == {PAGE}
        older = await cache.refresh(8, NOW)
        changes.number = 2
        await cache.refresh(9, NOW)
        fill(cache, older)
        assert kept(cache, 9) == set()

    asyncio.run(work())


def test_nothing_is_used_while_the_store_is_asked_and_the_last_answer_decides() -> None:
    async def work() -> None:
        changes = Changes()
        cache = PageCache(changes.latest)
        fill(cache, await cache.refresh(7, NOW))
        changes.answers.clear()
        first = asyncio.create_task(cache.refresh(8, NOW))
        await asyncio.sleep(0)
        assert kept(cache, 8) == set()
        fill(cache, await cache.refresh(8, NOW))  # a second request reads for itself meanwhile
        assert kept(cache, 8) == set(ALL)
        changes.number = 2
        second = asyncio.create_task(cache.refresh(9, NOW))
        await asyncio.sleep(0)
        changes.answers.set()
        await asyncio.gather(first, second)
        assert kept(cache, 9) == set()

    asyncio.run(work())


def test_entries_survive_a_question_that_fails_and_are_used_after_the_next() -> None:
    async def work() -> None:
        changes = Changes()
        cache = PageCache(changes.latest)
        fill(cache, await cache.refresh(7, NOW))
        changes.fails = True
        with pytest.raises(Unavailable):
            await cache.refresh(8, NOW)
        assert kept(cache, 8) == set()
        changes.fails = False
        await cache.refresh(8, NOW)
        assert kept(cache, 8) == {PAGE}

    asyncio.run(work())


def test_a_change_that_the_gate_does_not_know_is_seen_after_a_second(tmp_path: Path) -> None:
    """As when a process died between its commit and the new version in the gate."""
    clock = Clock()

    async def work(running: Running) -> None:
        async def ask(path: str) -> tuple[int, bytes]:
            reply = await running.ask(path)
            return reply.status, reply.body

        def behind(statement: str) -> None:
            with contextlib.closing(apsw.Connection(str(tmp_path / "live.db"))) as other:
                other.execute(statement)
                other.execute("UPDATE catalogue_changes SET number = number + 1")

        pet_id = (await running.store.pets.add(NewPet("Rex", 1), NOW)).pet.id
        await ask("/v1/pets")
        clock.now += 5
        listed = await ask("/v1/pets")
        behind("UPDATE pets SET status = 'sold'")
        clock.now = NOW + 5.999
        assert await ask("/v1/pets") == listed
        clock.now = NOW + 6
        assert b"sold" in (await ask("/v1/pets"))[1]
        clock.now = NOW + 7
        behind("UPDATE pets SET status = 'pending'")
        assert b"pending" in (await ask(f"/v1/pets/{pet_id}"))[1]
        assert b"pending" in (await ask("/v1/pets"))[1]  # what one client has seen, every client sees
        behind("UPDATE keys SET revoked = 1")
        clock.now = NOW + 7.999  # the key was looked up at NOW + 7
        assert (await ask("/v1/pets"))[0] == 200
        clock.now = NOW + 8
        assert (await ask("/v1/pets"))[0] == 401
        behind("UPDATE keys SET revoked = NULL")
        assert b"pending" in (await ask("/v1/pets"))[1]
        behind("UPDATE pets SET status = 'sold'")
        clock.now = NOW - 3600  # a clock that is set back does not make a second an hour
        assert b"sold" in (await ask("/v1/pets"))[1]
        behind("UPDATE keys SET revoked = 1")
        clock.now = NOW - 7200
        assert (await ask("/v1/pets"))[0] == 401

    use_app(tmp_path, work, clock)


def test_requests_share_a_slow_read_and_a_failed_one_is_not_kept(tmp_path: Path) -> None:
    reads = 0

    def slow(store: Store) -> Any:
        async def page(**wanted: Any) -> Page:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0.01)
            if reads == 1:
                raise Unavailable("a test")
            return await store.pets.page(**wanted)

        return Wrapped(store, page=page, immediate=False)

    async def work(running: Running) -> None:
        async def ask_together() -> list[int]:
            return [reply.status for reply in await asyncio.gather(*(running.ask() for _ in range(5)))]

        assert (await ask_together(), reads) == ([503] * 5, 1)
        assert (await ask_together(), reads) == ([200] * 5, 2)
        assert (await ask_together(), reads) == ([200] * 5, 2)

    use_app(tmp_path, work, wrap_store=slow)
