"""How long callers wait for the writer of the SQLite store. A refused write is never written later.

Only the tests move the clock. A write has 100 s and can join a batch during the first 85 s. A machine that stalls
therefore does not affect the results.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from harness.stores import NOW, WatchedConnection, names, sqlite_store
from petstore.errors import Unavailable
from petstore.observability import metrics
from petstore.pets import Added, IdempotencyKey, NewPet, Pet
from petstore.store import Store
from petstore.store.database import Bounds
from petstore.store.schema import USAGE_TOTALS
from petstore.store.sqlite.connection import connect
from petstore.timeouts import Timeouts

LIMITS = Bounds(timeouts=Timeouts(100), check_interval=0.01)


class Disk(WatchedConnection):
    """While `works` is clear, hangs before each transaction, or before each commit if `hangs_in_commit` is set."""

    works = threading.Event()
    hangs_in_commit = False
    hanging = threading.Event()
    locks_wanted = 0  # attempts to begin a transaction

    def before(self, sql: str) -> None:
        begins = sql.startswith(("BEGIN", "INSERT INTO pets")) and not self.in_transaction
        Disk.locks_wanted += sql.startswith("BEGIN")
        if (sql == "COMMIT" if Disk.hangs_in_commit else begins) and not Disk.works.is_set():
            Disk.hanging.set()
            Disk.works.wait(timeout=60)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def disk() -> Iterator[None]:
    Disk.works.set()
    Disk.locks_wanted = 0
    yield
    Disk.works.set()


@contextlib.asynccontextmanager
async def hanging_disk(*, in_commit: bool = False) -> AsyncIterator[None]:
    Disk.hangs_in_commit = in_commit
    Disk.hanging.clear()
    Disk.works.clear()
    yield
    Disk.works.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)  # polls until the timeout


@contextlib.contextmanager
def another_process_writing(data: Path) -> Iterator[None]:
    """Holds the write lock without changing anything."""
    other = connect(data / "live.db")
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def adding(store: Store, name: str, idempotency_key: IdempotencyKey | None = None) -> "asyncio.Task[Added]":
    return asyncio.create_task(store.pets.add(NewPet(name, 1), NOW, idempotency_key))


async def refused(*writes: Awaitable[object]) -> bool:
    outcomes = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), 60)
    return all(isinstance(outcome, Unavailable) and "in time" in str(outcome) for outcome in outcomes)


def test_write_that_finds_the_queue_full_is_refused_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS._replace(queued_writes=3, batch=2), Disk, clock=Clock()) as store:
            async with hanging_disk():
                writes = [adding(store, name) for name in ("Rex", "Max")]
                await until(Disk.hanging.is_set)
                writes += [adding(store, f"Pet {i}") for i in range(3)]
                await asyncio.sleep(0)
                before, down = (each.cells["live", "write"] for each in (metrics.STORE_ERRORS, metrics.STORE_DOWN))
                with pytest.raises(Unavailable, match="queue is full"):
                    await store.pets.add(NewPet("too many", 1), NOW)
                assert metrics.STORE_ERRORS.cells["live", "write"] == before + 1
                assert metrics.STORE_DOWN.cells["live", "write"] == down
                await until(lambda: metrics.STORE_QUEUE.cells.get(("live",)) == 2 + 3)
            added = [each.pet.name for each in await asyncio.gather(*writes)]
            assert added == ["Rex", "Max", "Pet 0", "Pet 1", "Pet 2"]

    asyncio.run(work())


def test_disk_that_hangs_keeps_nobody_waiting_beyond_the_deadline(tmp_path: Path) -> None:
    clock = Clock()

    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS, Disk, clock=clock) as store:
            async with hanging_disk():
                in_flight = adding(store, "in flight")
                await until(Disk.hanging.is_set)
                waiting = adding(store, "waiting")
                await asyncio.sleep(0.05)  # time for several checks
                clock.now += 86
                assert await refused(waiting)
                assert not in_flight.done()  # the remaining time is reserved for its commit
                clock.now += 15
                assert await refused(in_flight)
                assert metrics.STORE_DOWN.cells["live", "write"]
            await store.pets.add(NewPet("Rex", 1), NOW)
            assert "waiting" not in await names(store)

    asyncio.run(work())


def test_write_that_was_refused_while_another_process_wrote_is_not_written_afterwards(tmp_path: Path) -> None:
    clock = Clock()

    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS, Disk, clock=clock) as store:
            with another_process_writing(tmp_path):
                in_flight = adding(store, "in flight")
                await until(lambda: Disk.locks_wanted == 1)  # its insert found the database locked
                waiting = adding(store, "waiting behind")
                await asyncio.sleep(0)
                clock.now += 101
                assert await refused(in_flight, waiting)
            await store.pets.add(NewPet("Max", 1), NOW)
            assert await names(store) == ["Max"]

    asyncio.run(work())


@pytest.mark.parametrize(
    "idempotency_key", [None, IdempotencyKey("key_a", "token", b"")], ids=["plain", "with an idempotency key"]
)
def test_of_writes_that_wait_for_a_lock_together_only_those_in_time_are_written(
    tmp_path: Path, idempotency_key: IdempotencyKey | None
) -> None:
    clock = Clock()

    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS, Disk, clock=clock) as store:
            with another_process_writing(tmp_path):
                async with hanging_disk():
                    first = adding(store, "first")
                    await until(Disk.hanging.is_set)
                    clock.now += 20
                    late = adding(store, "late")
                    await asyncio.sleep(0)
                    clock.now += 50
                    in_time = adding(store, "in time", idempotency_key)
                    await asyncio.sleep(0)
                    clock.now += 31
                    assert await refused(first)
                # The thread gives up on the first write, then waits for the lock with the other two.
                await until(lambda: Disk.locks_wanted == 2)
                clock.now += 20
                assert await refused(late)
                assert not in_time.done()
            assert (await in_time).pet.name == "in time"
            assert await names(store) == ["in time"]

    asyncio.run(work())


def test_thread_skips_what_comes_to_it_too_late(tmp_path: Path) -> None:
    """The event loop does not check, so the thread must skip them, whether part of a batch or all of it is late."""
    clock = Clock()

    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS._replace(check_interval=3600), Disk, clock=clock) as store:
            for in_time in ("in time", None):
                async with hanging_disk():
                    first = adding(store, "first")
                    await until(Disk.hanging.is_set)
                    late = [adding(store, "late") for _ in range(2)]
                    await asyncio.sleep(0)
                    clock.now += 101
                    others = [adding(store, in_time)] if in_time else []
                    await asyncio.sleep(0)
                assert (await first).pet.name == "first"
                assert await refused(*late)
                assert [(await each).pet.name for each in others] == ([in_time] if in_time else [])
            assert await names(store) == ["first", "in time", "first"]

    asyncio.run(work())


def test_write_whose_time_ends_during_its_commit_is_written_and_succeeds(tmp_path: Path) -> None:
    clock = Clock()

    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS, Disk, clock=clock) as store:
            async with hanging_disk():
                writing = adding(store, "Rex")
                await until(Disk.hanging.is_set)
                clock.now += 95
                await asyncio.sleep(0.05)  # time for several checks
                assert not writing.done()
            assert (await writing).pet.name == "Rex"

    asyncio.run(work())


@pytest.mark.parametrize("how", ["timed out", "cancelled"])
def test_second_use_of_an_idempotency_key_gets_the_animal_of_a_first_one_that_gave_up(tmp_path: Path, how: str) -> None:
    clock = Clock()
    key = IdempotencyKey("key_a", "token", b"")

    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS, Disk, clock=clock) as store:
            async with hanging_disk(in_commit=True):
                first = adding(store, "Rex", key)
                await until(Disk.hanging.is_set)
                clock.now += 50
                second = adding(store, "Rex", key)
                await asyncio.sleep(0)
                if how == "timed out":
                    clock.now += 51
                    assert await refused(first)
                    assert metrics.STORE_DOWN.cells["live", "write"]
                else:
                    first.cancel()
            assert (await second) == Added(Pet(1, "Rex", 1, "available"), replayed=True)
            assert await names(store) == ["Rex"]

    asyncio.run(work())


def test_second_use_of_an_idempotency_key_is_the_first_if_the_other_was_not_written(tmp_path: Path) -> None:
    clock = Clock()
    key = IdempotencyKey("key_a", "token", b"")

    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS, Disk, clock=clock) as store:
            async with hanging_disk():
                before = adding(store, "Max")
                await until(Disk.hanging.is_set)
                uses = [adding(store, "Rex", key) for _ in range(3)]
                await asyncio.sleep(0)
                uses[0].cancel()
            await before
            assert [(await each).replayed for each in uses[1:]] == [False, True]
            assert await names(store) == ["Max", "Rex"]

    asyncio.run(work())


def test_write_that_waits_for_a_long_one_is_not_part_of_it(tmp_path: Path) -> None:
    clock = Clock()

    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS, Disk, clock=clock) as store:
            await store.pets.add(NewPet("before", 1), NOW)
            async with hanging_disk():
                long = asyncio.create_task(store.transfer.put_rows(USAGE_TOTALS, [(60, 0, "admitted", 1)]))
                await until(Disk.hanging.is_set)
                after = adding(store, "after")
                await asyncio.sleep(0)
                clock.now += 101
                assert await refused(after)
                assert not long.done()
            await long
            assert await names(store) == ["before"]

    asyncio.run(work())
