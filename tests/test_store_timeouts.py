"""How long anyone waits for the writer of the SQLite store, and that what was refused is not written."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from petstore.errors import Unavailable
from petstore.observability import metrics
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store import PATIENCE, Store
from petstore.store.sqlite import SqliteStore
from petstore.store.sqlite import writer as writer_module
from petstore.store.sqlite.file import connect
from tests.places import StorePlace
from tests.test_store_writer import NOW, names


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hangs while it is clear."""
    hangs, commit = threading.Event(), writer_module.Writer._commit
    hangs.set()

    def slow(self: writer_module.Writer, *rest: Any) -> Any:
        hangs.wait(timeout=30)
        return commit(self, *rest)

    monkeypatch.setattr(writer_module.Writer, "_commit", slow)
    return hangs


def test_whoever_finds_the_queue_full_is_told_at_once(
    tmp_path: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_MAX", 3)
    monkeypatch.setattr(writer_module, "BATCH_MAX", 2)
    monkeypatch.setattr(writer_module, "TICK", 0.001)

    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        disk.clear()
        adding = [asyncio.ensure_future(store.add(NewPet(name, 1), NOW)) for name in ("Rex", "Max")]
        for _ in range(3):  # turns of the loop: submitted, handed over, and not again
            await asyncio.sleep(0)
        assert len(store._writer._in_flight) == 2
        adding += [asyncio.ensure_future(store.add(NewPet(f"Pet {i}", 1), NOW)) for i in range(3)]
        await asyncio.sleep(0)
        before = metrics.STORE_ERRORS.cells["live", "write"]
        with pytest.raises(Unavailable, match="queue is full"):
            await store.add(NewPet("too many", 1), NOW)
        assert metrics.STORE_ERRORS.cells["live", "write"] == before + 1
        assert not store._writer._health.down
        async with asyncio.timeout(10):
            while metrics.STORE_QUEUE.cells.get(("live",)) != 2 + 3:
                await asyncio.sleep(0)
        disk.set()
        assert [added.pet.name for added in await asyncio.gather(*adding)] == ["Rex", "Max", "Pet 0", "Pet 1", "Pet 2"]

    StorePlace(tmp_path).use(work)


def test_nobody_waits_longer_than_the_patience_for_a_disk_that_hangs(
    tmp_path: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "TICK", 0.02)

    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        await store.add(NewPet("Rex", 1), NOW)
        disk.clear()
        with monkeypatch.context() as hurry:
            hurry.setattr(writer_module, "PATIENCE", 0.1)
            in_hand = asyncio.ensure_future(store.add(NewPet("in hand", 1), NOW))
            while not store._writer._in_flight:
                await asyncio.sleep(0)
            waiting = store.add(NewPet("waiting", 1), NOW)
            for result in await asyncio.gather(in_hand, waiting, return_exceptions=True):
                assert isinstance(result, Unavailable) and "in time" in str(result)
        assert store._writer._health.down
        disk.set()
        assert (await store.add(NewPet("Max", 1), NOW)).pet.name == "Max"
        assert await names(store) == ["Rex", "in hand", "Max"]  # what was given up while it waited is not written

    StorePlace(tmp_path).use(work)


@contextlib.contextmanager
def another_writing(data: Path) -> Iterator[None]:
    """Somebody else has the lock, and changes nothing."""
    other = connect(data / "live.db")
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


async def refused(*adding: Awaitable[Added]) -> bool:
    return all(isinstance(each, Unavailable) for each in await asyncio.gather(*adding, return_exceptions=True))


def test_whoever_was_refused_while_another_wrote_is_not_added_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PATIENCE", 0.3)
    monkeypatch.setattr(writer_module, "BUSY_MILLISECONDS", 240)
    monkeypatch.setattr(writer_module, "COMMIT_SECONDS", 0)
    monkeypatch.setattr(writer_module, "TICK", 0.01)

    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        await store.add(NewPet("Rex", 1), NOW)
        with another_writing(tmp_path):
            in_hand = asyncio.ensure_future(store.add(NewPet("in hand", 1), NOW))
            while not store._writer._in_flight:
                await asyncio.sleep(0)
            assert await refused(in_hand, store.add(NewPet("waiting behind", 1), NOW))
        monkeypatch.setattr(writer_module, "PATIENCE", PATIENCE)
        await store.add(NewPet("Max", 1), NOW)
        assert await names(store) == ["Rex", "Max"]

    StorePlace(tmp_path).use(work)


@pytest.mark.parametrize(
    "idempotency_key", [None, IdempotencyKey("key_a", "token", b"")], ids=["plain", "with a promise"]
)
def test_of_those_who_wait_for_a_lock_together_only_the_patient_are_added_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idempotency_key: IdempotencyKey | None
) -> None:
    monkeypatch.setattr(writer_module, "COMMIT_SECONDS", 0)
    monkeypatch.setattr(writer_module, "TICK", 0.01)

    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        await store.add(NewPet("Rex", 1), NOW)
        with another_writing(tmp_path):
            with monkeypatch.context() as hurry:
                hurry.setattr(writer_module, "PATIENCE", 0.1)
                late = store._writer.add(NewPet("late", 1), NOW, None)
            patient = store._writer.add(NewPet("patient", 2), NOW, idempotency_key)
            assert await refused(late)
            assert not patient.done()
        assert (await patient).pet.name == "patient"
        assert await names(store) == ["Rex", "patient"]

    StorePlace(tmp_path).use(work)


def test_whoever_the_thread_comes_to_too_late_is_refused_and_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the watch: the thread itself must find out, for some of a batch and for all of it."""
    monkeypatch.setattr(writer_module, "TICK", 60)

    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        monkeypatch.setattr(writer_module, "PATIENCE", -1)
        late = [store._writer.add(NewPet("late", 1), NOW, None) for _ in range(2)]
        monkeypatch.setattr(writer_module, "PATIENCE", PATIENCE)
        assert (await store.add(NewPet("Rex", 1), NOW)).pet.name == "Rex"
        assert await refused(*late)
        monkeypatch.setattr(writer_module, "PATIENCE", -1)
        assert await refused(store.add(NewPet("late", 1), NOW))
        assert await names(store) == ["Rex"]

    StorePlace(tmp_path).use(work)


def test_whoever_is_being_committed_when_its_time_is_over_is_added_and_told_so(
    tmp_path: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "TICK", 0.01)
    monkeypatch.setattr(writer_module, "COMMIT_SECONDS", 30)

    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        disk.clear()
        with monkeypatch.context() as hurry:
            hurry.setattr(writer_module, "PATIENCE", 0.1)
            adding = store._writer.add(NewPet("Rex", 1), NOW, None)
        async with asyncio.timeout(10):
            while not store._writer._in_flight or store._writer._in_flight[0].due > time.monotonic() - 0.1:
                await asyncio.sleep(0.01)  # as often as the watch looks
        disk.set()
        assert (await adding).pet.name == "Rex"

    StorePlace(tmp_path).use(work)


def test_whoever_waits_for_a_long_write_is_not_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "PATIENCE", 0.1)
    monkeypatch.setattr(writer_module, "COMMIT_SECONDS", 0)
    monkeypatch.setattr(writer_module, "TICK", 0.01)
    ending = threading.Event()

    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        before = store._writer.add(NewPet("before", 1), NOW, None)
        long = store._writer.call(lambda _: ending.wait(timeout=30), patience=60)
        after = store._writer.add(NewPet("after", 1), NOW, None)
        assert (await before).pet.name == "before"
        assert await refused(after)
        ending.set()
        assert await long
        assert await names(store) == ["before"]

    StorePlace(tmp_path).use(work)
