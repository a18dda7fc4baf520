"""The writer of the SQLite store: group commit, other processes, outages, and cleaning up."""

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from harness.stores import ENTRY, NOW, PATIENT, StorePlace, WatchedConnection, names, opened, sqlite_store
from petstore.audit import AuditEntry
from petstore.changes import Change
from petstore.errors import DiskFull, Unavailable
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store import Store
from petstore.store.database import Bounds
from petstore.store.schema import USAGE_TOTALS
from petstore.store.sqlite import writer as writer_module
from petstore.store.sqlite.connection import WriteLock, connect
from petstore.usage import OperationUsage


class Watched(WatchedConnection):
    """Records all connections and the statements that they execute."""

    made: list["Watched"] = []  # noqa: RUF012  # shared by all connections
    statements: list[str] = []  # noqa: RUF012  # shared by all connections

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        Watched.made.append(self)

    def before(self, sql: str) -> None:
        Watched.statements.append(sql)


@pytest.fixture(autouse=True)
def forget_connections() -> None:
    Watched.made.clear()
    Watched.statements.clear()


def writers_connection() -> apsw.Connection:
    """Returns the second connection, because the reader opens the first."""
    return Watched.made[1]


# Group commit


def test_concurrent_adds_share_transactions_and_each_gets_its_own_animal(tmp_path: Path) -> None:
    async def work() -> list[Added]:
        async with sqlite_store(tmp_path, kind=Watched) as store:
            return await asyncio.gather(*(store.pets.add(NewPet(f"Pet {i}", i), NOW) for i in range(500)))

    added = asyncio.run(work())
    assert [(a.pet.name, a.pet.category_id) for a in added] == [(f"Pet {i}", i) for i in range(500)]
    assert len({a.pet.id for a in added}) == 500
    assert sum(sql.startswith("INSERT INTO pets") for sql in Watched.statements) < 100


def test_write_that_may_take_long_has_its_own_transaction(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path, kind=Watched) as store:
            long = [store.transfer.put_rows(USAGE_TOTALS, [(60, start, "admitted", 1)]) for start in range(2)]
            short = store.pets.add(NewPet("Rex", 1), NOW), store.audit.record(ENTRY)
            await asyncio.gather(
                *long, *short, store.usage.add([OperationUsage("key_a", 0, "admitted", 1, "other")], {})
            )

    asyncio.run(work())
    text = " ".join("call" if sql == "SAVEPOINT call" else sql for sql in Watched.statements)
    transactions = [part.split("COMMIT")[0] for part in text.split("BEGIN IMMEDIATE")[1:]]
    assert [part.count("call ") - part.count("TO call ") - part.count("RELEASE call ") for part in transactions] == [
        1
    ] * 4
    assert ["INSERT INTO pets" in part for part in transactions] == [False, False, True, False]


def test_uses_of_one_idempotency_key_in_a_failed_batch_fail_together(tmp_path: Path) -> None:
    key = IdempotencyKey("key_a", "token", b"")

    async def work() -> None:
        async with sqlite_store(tmp_path, kind=Watched) as store:
            await store.audit.record(ENTRY)
            writer = writers_connection()
            writer.pragma("max_page_count", writer.pragma("page_count"))
            much = AuditEntry(NOW, "a test", "backup", "much", "x" * 200_000)
            adding = [store.pets.add(NewPet("Rex", 1), NOW, key) for _ in range(3)]
            failed = await asyncio.gather(*adding, store.audit.record(much), return_exceptions=True)
            assert [type(each) for each in failed] == [DiskFull] * 4
            writer.pragma("max_page_count", 2**30)
            added = await asyncio.gather(*(store.pets.add(NewPet("Rex", 1), NOW, key) for _ in range(3)))
            assert [each.replayed for each in added] == [False, True, True]
            assert await names(store) == ["Rex"]

    asyncio.run(work())


def test_full_disk_fails_the_whole_batch_and_nothing_is_announced(tmp_path: Path) -> None:
    changes: list[Change] = []

    async def work() -> list[object]:
        async with sqlite_store(tmp_path, kind=Watched, changes=changes) as store:
            await store.audit.record(ENTRY)
            changes.clear()
            writer = writers_connection()
            writer.pragma("max_page_count", writer.pragma("page_count"))
            much = AuditEntry(NOW, "a test", "backup", "much", "x" * 200_000)
            batch = store.pets.add(NewPet("Rex", 1), NOW), store.audit.record(much), store.audit.record(ENTRY)
            results = await asyncio.gather(*batch, return_exceptions=True)
            writer.pragma("max_page_count", 2**30)
            assert await names(store) == [] and len((await store.audit.find()).entries) == 1
            return list(results)

    message = f"the disk used by {tmp_path} is full; free some space there (FullError: database or disk is full)"
    assert [str(each) for each in asyncio.run(work())] == [message] * 3
    assert changes == []


# Other processes


def test_write_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    ours, theirs, order = WriteLock(tmp_path / "x.db"), WriteLock(tmp_path / "x.db"), []

    def wait() -> None:
        with theirs:
            order.append("theirs")

    waiting = threading.Thread(target=wait)
    with ours:
        waiting.start()
        waiting.join(timeout=0.2)
        order.append("ours")
    waiting.join(timeout=10)
    assert order == ["ours", "theirs"]
    with ours:
        order.append("ours again")
    assert len(order) == 3
    assert (tmp_path / "x.db-turn").stat().st_mode & 0o777 == 0o600
    ours.close()
    theirs.close()
    assert not opened(tmp_path / "x.db-turn")


def test_a_lock_held_by_another_process_is_an_outage_that_heals(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path, Bounds(), Watched) as store:
            await store.pets.add(NewPet("Rex", 1), NOW)
            assert (writers_connection().pragma("busy_timeout"), writers_connection().pragma("cache_size")) == (
                0,
                -1024,
            )
            other = connect(tmp_path / "live.db")
            other.execute("BEGIN IMMEDIATE")
            async with asyncio.timeout(20):  # takes 1.8 s unless the machine stalls
                with pytest.raises(Unavailable):
                    await store.pets.add(NewPet("Max", 1), NOW)
            assert await names(store) == ["Rex"]  # reads continue
            other.execute("ROLLBACK")
            other.close()
            assert (await store.pets.add(NewPet("Max", 1), NOW)).pet.name == "Max"
            assert writers_connection().pragma("busy_timeout") == 0  # reset after waiting for the lock

    asyncio.run(work())


# Outages


@pytest.mark.parametrize(
    "idempotency_key", [None, IdempotencyKey("key_a", "token", b"")], ids=["one statement", "a transaction"]
)
def test_a_full_store_is_an_outage_that_heals_while_reads_continue(
    tmp_path: Path, idempotency_key: IdempotencyKey | None
) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path, kind=Watched) as store:
            await store.pets.add(NewPet("Rex", 1), NOW)
            writer = writers_connection()
            # A limit on the file size causes the same error as a full disk.
            writer.execute(f"PRAGMA max_page_count = {writer.pragma('page_count')}")
            with pytest.raises(Unavailable, match="FullError"):
                adding = [store.pets.add(NewPet("x" * 250, 1), NOW) for _ in range(200)]
                await asyncio.gather(store.pets.add(NewPet("Mia", 1), NOW, idempotency_key), *adding)
            assert not writer.in_transaction
            assert await names(store) == ["Rex"]
            writer.execute("PRAGMA max_page_count = 1000000")
            assert (await store.pets.add(NewPet("Max", 1), NOW)).pet.name == "Max"

    asyncio.run(work())


# Cleaning up


def test_log_stays_bounded_while_there_is_always_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers take turns, each beginning before the other ends, so that a checkpoint must wait for them."""
    monkeypatch.setattr(writer_module, "WAL_MAX", 256 * 1024)
    ended = threading.Event()

    def read() -> None:
        readers = [connect(tmp_path / "live.db", readonly=True) for _ in range(2)]
        for number in itertools.count():
            readers[number % 2].execute("BEGIN; SELECT count(*) FROM pets").fetchall()
            if number:
                readers[(number + 1) % 2].execute("COMMIT")
            if ended.wait(0.001):
                break
        for reader in readers:
            reader.close()

    async def work() -> int:
        async with sqlite_store(tmp_path, PATIENT) as store:
            await store.pets.add(NewPet("x", 1), NOW)
            reading = threading.Thread(target=read)
            reading.start()
            sizes = []
            for _ in range(600):
                await asyncio.gather(*(store.pets.add(NewPet("x" * 250, 1), NOW) for _ in range(10)))
                sizes.append((tmp_path / "live.db-wal").stat().st_size)
            ended.set()
            reading.join()
            return max(sizes)

    assert asyncio.run(work()) < 2 * 1024 * 1024


def test_store_that_is_closed_has_written_all_and_holds_nothing(tmp_path: Path) -> None:
    adding: list[asyncio.Future[Added]] = []
    kept: list[Store] = []  # a garbage-collected store would close its files anyway

    async def work() -> None:
        async with sqlite_store(tmp_path) as store:
            kept.append(store)
            adding.append(asyncio.ensure_future(store.pets.add(NewPet("Rex", 1), NOW)))
            await asyncio.sleep(0)  # until the write is queued
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())
    assert adding[0].result().pet.name == "Rex"
    for thread in threading.enumerate():
        if thread.name == "writer-live":
            thread.join(timeout=10)  # it has finished its work
            assert not thread.is_alive()
    assert not opened(tmp_path / "live.db")


def test_store_that_only_reads_has_no_writers_thread(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await store.pets.page(after=0, limit=1, status=None)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("writer-")]

    StorePlace(tmp_path).use(work)
