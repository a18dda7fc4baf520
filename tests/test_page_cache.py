"""What a worker remembers of the catalogue: how much of it, for how long, and who reads what was not remembered."""

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
from petstore.web import page_cache as pages
from petstore.web.app import App
from tests.test_web_in_process import Clock, use_app
from tests.test_web_parts import NOW, request


def test_pages_and_animals_are_read_once_until_something_changes(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        pets = app.places[0].pets
        first = (await store.add(NewPet("Rex", 1), NOW)).pet.id

        async def misses() -> int:
            for path, query in [("/v1/pets", "limit=1"), ("/v1/pets", "limit=2"), (f"/v1/pets/{first}", "")] * 3:
                assert (await app.answer(request(path, query, authorization=f"Bearer {secret}"))).status == 200
            return pets.pages.take_misses()

        await misses()  # who is shown a new animal first tells all others of it, which makes everything stale
        assert await misses() == 0
        await store.add(NewPet("Mia", 1), NOW)
        await misses()
        assert await misses() == 0
        await store.set_status([first], "sold", AuditEntry(NOW, "a test", "set status", str(first)))
        assert (await misses(), await misses()) == (3, 0)

    use_app(tmp_path, work)


def test_pages_from_memory_are_counted_apart_from_those_that_were_read(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        before = dict(metrics.PAGE_CACHE.cells)
        for path in ["/v1/pets"] * 5 + ["/v1/pets/7"] * 10:  # there is no such animal
            await app.answer(request(path, authorization=f"Bearer {secret}"))
        app.settle(0.0)
        app.settle(0.0)  # nothing since
        grown = {cell: value - before.get(cell, 0) for cell, value in metrics.PAGE_CACHE.cells.items()}
        assert grown["live", "hit"] == 4 and grown["live", "miss"] == 1

    use_app(tmp_path, work)


def test_what_is_remembered_stays_within_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "REMEMBERED_BYTES", 10_000)

    async def work(app: App, store: Store, secret: str) -> None:
        pets = app.places[0].pets
        await store.add(NewPet("Rex", 1), NOW)
        held = []
        for limit in range(1, 41):
            reply = await app.answer(request(query=f"limit={limit}", authorization=f"Bearer {secret}"))
            assert reply.status == 200
            held.append(sum(len(page.body) + 1024 for page in pets.pages._remembered.values()))
        assert 8_000 < max(held) <= 10_000
        assert held[-1] < max(held)  # it was emptied, and filled again

    use_app(tmp_path, work)


def test_what_just_fits_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        pets = app.places[0].pets
        size = len(b"[]") + 1024
        monkeypatch.setattr(pages, "REMEMBERED_BYTES", 3 * size)
        held = []
        for limit in range(1, 8):
            await app.answer(request(query=f"limit={limit}", authorization=f"Bearer {secret}"))
            held.append(len(pets.pages._remembered))
        assert held == [1, 2, 3, 1, 2, 3, 1]

    use_app(tmp_path, work)


def test_what_changed_behind_the_gates_back_is_seen_after_a_second(tmp_path: Path) -> None:
    """As when a process died between its commit and telling the gate of it."""
    clock = Clock()

    async def work(app: App, store: Store, secret: str) -> None:
        async def ask(path: str) -> tuple[int, bytes]:
            reply = await app.answer(request(path, authorization=f"Bearer {secret}"))
            return reply.status, reply.body

        def behind(statement: str) -> None:
            with contextlib.closing(apsw.Connection(str(tmp_path / "live.db"))) as other:
                other.execute(statement)

        pet_id = (await store.add(NewPet("Rex", 1), NOW)).pet.id
        await ask("/v1/pets")  # the first to show a new animal tells all others of it
        clock.now += 5
        listed, got = await ask("/v1/pets"), await ask(f"/v1/pets/{pet_id}")
        behind("UPDATE pets SET status = 'sold'")
        clock.now = NOW + 5.999
        assert (await ask("/v1/pets"), await ask(f"/v1/pets/{pet_id}")) == (listed, got)
        clock.now = NOW + 6
        assert b"sold" in (await ask("/v1/pets"))[1] and b"sold" in (await ask(f"/v1/pets/{pet_id}"))[1]
        behind("UPDATE pets SET status = 'pending'")
        clock.now = NOW + 7
        assert b"pending" in (await ask(f"/v1/pets/{pet_id}"))[1]
        behind("UPDATE keys SET revoked = 1")
        clock.now = NOW + 7.999  # the key was looked up at NOW + 7
        assert (await ask("/v1/pets"))[0] == 200
        clock.now = NOW + 8
        assert (await ask("/v1/pets"))[0] == 401
        behind("UPDATE keys SET revoked = NULL")
        assert b"pending" in (await ask("/v1/pets"))[1] and b"pending" in (await ask(f"/v1/pets/{pet_id}"))[1]
        behind("UPDATE pets SET status = 'sold'")
        clock.now = NOW - 3600  # a clock that is set back does not make a second an hour
        assert b"sold" in (await ask(f"/v1/pets/{pet_id}"))[1] and b"sold" in (await ask("/v1/pets"))[1]
        behind("UPDATE keys SET revoked = 1")
        clock.now = NOW - 7200
        assert (await ask("/v1/pets"))[0] == 401

    use_app(tmp_path, work, clock)


def test_a_read_that_takes_its_time_is_shared_and_one_that_failed_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        monkeypatch.setattr(type(store), "immediate", False)
        real, reads = store.page, 0

        async def slow(**wanted: Any) -> Page:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0.01)
            if reads == 1:
                raise Unavailable("a test")
            return await real(**wanted)

        monkeypatch.setattr(store, "page", slow)

        async def ask_at_once() -> list[int]:
            asked = (app.answer(request(authorization=f"Bearer {secret}")) for _ in range(5))
            return [reply.status for reply in await asyncio.gather(*asked)]

        assert (await ask_at_once(), reads) == ([503] * 5, 1)
        assert (await ask_at_once(), reads) == ([200] * 5, 2)
        assert (await ask_at_once(), reads) == ([200] * 5, 2)
        assert app.places[0].pets.pages._being_read == {}

    use_app(tmp_path, work)
