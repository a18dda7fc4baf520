"""The page cache: how much it keeps, for how long, and which requests share a read."""

import asyncio
from pathlib import Path
from typing import Any

from harness.in_process import NOW, Running, use_app, with_fault
from harness.stores import BY
from petstore.errors import Unavailable
from petstore.gate import CatalogueVersion
from petstore.observability import metrics
from petstore.pets import NewPet, Page
from petstore.store import Store
from petstore.store.freshness import KEPT_SECONDS
from petstore.web.page_cache import OVERHEAD, PageCache, Rendered
from petstore.web.requests import ListQuery


class CountedReads:
    """Counts the pages that are read from the store."""

    def __init__(self) -> None:
        self.reads = 0

    def wrap(self, store: Store) -> Any:
        def counted(read: Any) -> Any:
            async def work(*arguments: Any, **named: Any) -> Any:
                self.reads += 1
                return await read(*arguments, **named)

            return work

        return with_fault(store, "pets", page=counted(store.pets.page))


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
        assert await reads() == 1  # the page with limit=1 already had a next page
        await store.pets.add(NewPet("Kim", 1), NOW)
        assert await reads() == 0
        await store.pets.set_status([first], "sold", BY)
        assert await reads() == 2
        assert await reads() == 0

    use_app(tmp_path, work, wrap_store=counted.wrap)


def test_hits_and_misses_are_counted(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        before = dict(metrics.PAGE_CACHE.cells)
        for _ in range(5):
            await running.ask("/v1/pets")
        running.app.publish(0.0)
        running.app.publish(0.0)  # nothing new
        grown = {cell: value - before.get(cell, 0) for cell, value in metrics.PAGE_CACHE.cells.items()}
        assert grown["live", "hit"] == 4 and grown["live", "miss"] == 1

    use_app(tmp_path, work)


def query(number: int) -> ListQuery:
    return ListQuery(number, None, 0)


def test_the_cache_stays_within_its_bound() -> None:
    cache = PageCache(bytes_max=3 * (2 + OVERHEAD))
    held = []
    for number in range(1, 8):
        cache.get(query(number), (7, 1), NOW)
        cache.put(query(number), Rendered("", b"[]", '"1"'), (7, 1))
        held.append(sum(cache.get(query(each), (7, 1), NOW) is not None for each in range(1, 8)))
    assert held == [1, 2, 3, 0, 1, 2, 3]


def test_a_page_that_many_requests_put_counts_once() -> None:
    cache = PageCache(bytes_max=3 * (4 + OVERHEAD))
    for added in range(7, 20):
        assert kept(cache, (added, 1)) == ({PAGE} if added > 7 else set())
        for _ in range(10):
            fill(cache, (added, 1))
        assert kept(cache, (added, 1)) == set(ALL)


PAGE, LAST_PAGE = ListQuery(1, None, 0), ListQuery(1, None, 5)
ALL = {PAGE: Rendered("", b"page", '"1"'), LAST_PAGE: Rendered("", b"last", '"2"', ends_list=True)}


def kept(cache: PageCache, version: CatalogueVersion, now: float = NOW) -> set[Any]:
    return {name for name in ALL if cache.get(name, version, now)}


def fill(cache: PageCache, version: CatalogueVersion) -> None:
    for name, rendered in ALL.items():
        cache.put(name, rendered, version)


def filled(version: CatalogueVersion) -> PageCache:
    cache = PageCache()
    kept(cache, version)
    fill(cache, version)
    assert kept(cache, version) == set(ALL)
    return cache


def test_a_new_animal_drops_only_what_ends_a_list_and_an_edit_drops_all() -> None:
    cache = filled((7, 1))
    assert kept(cache, (8, 1)) == {PAGE}
    assert kept(cache, (8, 2)) == set()


def test_what_was_read_before_a_change_is_not_kept() -> None:
    cache = PageCache()
    kept(cache, (7, 1))
    kept(cache, (8, 1))  # another request has seen a newer version
    fill(cache, (7, 1))
    assert kept(cache, (8, 1)) == set()


def test_a_request_that_comes_late_makes_nothing_old_usable() -> None:
    """A request that was admitted before a change uses the cache after a request that was admitted later."""
    cache = filled((7, 1))
    assert kept(cache, (7, 2)) == set()
    assert kept(cache, (7, 1)) == set()  # the late request resets the cache to its older version
    fill(cache, (7, 1))  # and might have read its pages before the change
    assert kept(cache, (7, 2)) == set()


def test_versions_of_another_gate_count_as_a_change_whatever_their_order() -> None:
    for version in ((6, 0), (-2, -2), (1, 9)):
        assert kept(filled((7, 1)), version) == set()


def test_nothing_is_kept_for_longer_than_a_minute() -> None:
    cache = filled((7, 1))
    assert kept(cache, (7, 1), NOW + KEPT_SECONDS - 0.1) == set(ALL)
    assert kept(cache, (7, 1), NOW + KEPT_SECONDS) == set()
    fill(cache, (7, 1))
    assert kept(cache, (7, 1), NOW - 3600) == set()  # the clock was set back


def test_requests_with_another_version_do_not_share_a_read() -> None:
    async def work() -> None:
        cache, begun, may_go = PageCache(), 0, asyncio.Event()

        async def read() -> Rendered:
            nonlocal begun
            begun += 1
            number = begun
            await may_go.wait()
            return Rendered("", str(number).encode(), "")

        async def ask(version: CatalogueVersion) -> bytes:
            assert cache.get(PAGE, version, NOW) is None
            return (await cache.share(PAGE, read)).body

        asking = []
        for version in ((7, 1), (7, 1), (8, 1), (8, 2), (8, 2)):
            asking.append(asyncio.create_task(ask(version)))
            await asyncio.sleep(0)
        may_go.set()
        assert await asyncio.gather(*asking) == [b"1", b"1", b"2", b"3", b"3"]

    asyncio.run(work())


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

        return with_fault(store, "pets", page=page, immediate=False)

    async def work(running: Running) -> None:
        async def ask_together() -> list[int]:
            return [reply.status for reply in await asyncio.gather(*(running.ask() for _ in range(5)))]

        assert (await ask_together(), reads) == ([503] * 5, 1)
        assert (await ask_together(), reads) == ([200] * 5, 2)
        assert (await ask_together(), reads) == ([200] * 5, 2)

    use_app(tmp_path, work, wrap_store=slow)
