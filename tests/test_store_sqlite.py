"""What is special about the SQLite store: files, migrations, group commit, several writers."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from petstore import metrics
from petstore.errors import IdempotencyConflict, OperatorError, Unavailable
from petstore.ledger import Deed
from petstore.pets import Added, NewPet, Once
from petstore.store import Store
from petstore.store.sqlite import SqliteStore
from petstore.store.sqlite import writer as writer_module
from petstore.store.sqlite.backup import Snapshot
from petstore.store.sqlite.file import FILE_PRAGMAS, MIGRATIONS, PRAGMAS, Turn, connect, translated
from petstore.store.sqlite.inspect import inspect
from tests.places import StorePlace

DEED = Deed(5.0, "a test", "test", "x")
NOW = 1_800_000_000.0


async def batches(*names: str) -> AsyncIterator[list[NewPet]]:
    for name in names:
        yield [NewPet(name, 1)]


def test_an_id_is_never_reused_even_when_the_newest_animal_is_gone(tmp_path: Path) -> None:
    async def add(store: Store) -> int:
        return (await store.add(NewPet("Rex", 1), NOW)).pet.id

    newest = StorePlace(tmp_path).use(add)
    with sqlite3.connect(tmp_path / "live.db") as by_hand:
        by_hand.execute("DELETE FROM pets")
    by_hand.close()
    assert StorePlace(tmp_path).use(add) > newest


def test_concurrent_adds_share_transactions_and_each_gets_its_own_animal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    commit = writer_module.Writer._commit

    def counting(
        self: writer_module.Writer, connection: apsw.Connection, batch: list[object], rows: str | None
    ) -> object:
        sizes.append(len(batch))
        return commit(self, connection, batch, rows)  # type: ignore[arg-type]  # the same list

    monkeypatch.setattr(writer_module.Writer, "_commit", counting)

    async def work(store: Store) -> list[Added]:
        return await asyncio.gather(*(store.add(NewPet(f"Pet {i}", i), NOW) for i in range(500)))

    added = StorePlace(tmp_path).use(work)
    assert [(a.pet.name, a.pet.category_id) for a in added] == [(f"Pet {i}", i) for i in range(500)]
    assert len({a.pet.id for a in added}) == 500
    assert sum(sizes) == 500 and len(sizes) < 100


@pytest.mark.parametrize("sql", ["_PAGE", "_PAGE_BY_STATUS"])
def test_a_page_is_found_by_index_alone(tmp_path: Path, sql: str) -> None:
    from petstore.store.sqlite import catalogue as sqlite

    StorePlace(tmp_path).use(lambda store: store.ping())
    connection = connect(tmp_path / "live.db", readonly=True)
    bindings = (0, 21) if sql == "_PAGE" else ("sold", 0, 21)
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + getattr(sqlite, sql), bindings)]
    connection.close()
    assert plan and all(step.startswith("SEARCH") for step in plan), plan


def test_files_are_durable_and_use_a_write_ahead_log(tmp_path: Path) -> None:
    connection = connect(tmp_path / "live.db")
    as_set = {name: connection.pragma(name) for name in (*FILE_PRAGMAS, *PRAGMAS)}
    stable_plans = connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1)
    connection.close()
    assert stable_plans == 1
    assert as_set == {
        "journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 4096, "journal_size_limit": 16 * 1024 * 1024,
        "foreign_keys": 1, "trusted_schema": 0, "cache_size": -16384,
    }  # fmt: skip


def test_reads_cannot_write_and_need_no_waiting(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        assert store.immediate
        assert store._read.pragma("busy_timeout") == 1_200  # less than the 1.5 s after which nobody waits
        with pytest.raises(apsw.ReadOnlyError):
            store._read.execute("DELETE FROM pets")

    StorePlace(tmp_path).use(work)


def test_a_turn_is_one_holders_at_a_time(tmp_path: Path) -> None:
    ours, theirs, order = Turn(tmp_path / "x.db"), Turn(tmp_path / "x.db"), []

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


def test_what_sqlite_says_is_an_outage_and_what_we_say_stays() -> None:
    ours, theirs = IdempotencyConflict("in hand"), apsw.IOError("disk I/O error")
    assert translated(ours) is ours
    outage = translated(theirs)
    assert isinstance(outage, Unavailable) and outage.__cause__ is theirs
    assert str(outage) == "the store failed: IOError: disk I/O error"


def test_idempotency_records_are_pruned_after_a_day(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        for i in range(10):
            await store.add(NewPet("Rex", 1), NOW + i, Once("key_a", f"t{i}", b""))
        await store.add(NewPet("Rex", 1), NOW + 100_000, Once("key_a", "new", b""))

    StorePlace(tmp_path).use(work)
    connection = connect(tmp_path / "live.db", readonly=True)
    assert connection.execute("SELECT token FROM idempotency").fetchall() == [("new",)]
    connection.close()


def test_a_lock_held_by_another_process_is_an_outage_that_heals(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await store.add(NewPet("Rex", 1), NOW)
        hog = connect(tmp_path / "live.db")
        hog.execute("BEGIN IMMEDIATE")
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable):
            await store.add(NewPet("Max", 1), NOW)
        assert asyncio.get_running_loop().time() - began < 2
        assert len((await store.page(after=0, limit=5, status=None)).pets) == 1  # reads go on
        hog.execute("ROLLBACK")
        hog.close()
        assert (await store.add(NewPet("Max", 1), NOW)).pet.name == "Max"

    StorePlace(tmp_path).use(work)


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

    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        disk.clear()
        adding = [asyncio.ensure_future(store.add(NewPet("Rex", 1), NOW))]
        while not store._writer._in_hand:
            await asyncio.sleep(0)
        adding += [asyncio.ensure_future(store.add(NewPet(f"Pet {i}", 1), NOW)) for i in range(3)]
        await asyncio.sleep(0)
        before = metrics.STORE_ERRORS.cells["live", "write"]
        with pytest.raises(Unavailable, match="queue is full"):
            await store.add(NewPet("too many", 1), NOW)
        assert metrics.STORE_ERRORS.cells["live", "write"] == before + 1
        assert not store._writer._health.down
        disk.set()
        assert [added.pet.name for added in await asyncio.gather(*adding)] == ["Rex", "Pet 0", "Pet 1", "Pet 2"]

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
            while not store._writer._in_hand:
                await asyncio.sleep(0)
            waiting = store.add(NewPet("waiting", 1), NOW)
            for result in await asyncio.gather(in_hand, waiting, return_exceptions=True):
                assert isinstance(result, Unavailable) and "in time" in str(result)
        assert store._writer._health.down
        disk.set()
        assert (await store.add(NewPet("Max", 1), NOW)).pet.name == "Max"
        names = [pet.name for pet in (await store.page(after=0, limit=9, status=None)).pets]
        assert names == ["Rex", "in hand", "Max"]  # what was given up while it waited is not written

    StorePlace(tmp_path).use(work)


@pytest.mark.parametrize("once", [None, Once("key_a", "token", b"")], ids=["one statement", "a transaction"])
def test_a_full_store_is_an_outage_that_heals_while_reads_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: Once | None
) -> None:
    opened: list[apsw.Connection] = []

    def watched(path: Path) -> apsw.Connection:
        opened.append(connect(path))
        return opened[-1]

    monkeypatch.setattr(writer_module, "connect", watched)

    async def work(store: Store) -> None:
        await store.add(NewPet("Rex", 1), NOW)
        # SQLite's own limit on the file: the same error as a full disk, without filling one.
        opened[0].execute(f"PRAGMA max_page_count = {opened[0].pragma('page_count')}")
        with pytest.raises(Unavailable, match="FullError"):
            adding = [store.add(NewPet("x" * 250, 1), NOW) for _ in range(200)]
            await asyncio.gather(store.add(NewPet("Mia", 1), NOW, once), *adding)
        assert not opened[0].in_transaction
        assert [pet.name for pet in (await store.page(after=0, limit=9, status=None)).pets] == ["Rex"]
        opened[0].execute("PRAGMA max_page_count = 1000000")
        assert (await store.add(NewPet("Max", 1), NOW)).pet.name == "Max"

    StorePlace(tmp_path).use(work)


def test_a_file_of_a_newer_version_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    StorePlace(tmp_path).use(lambda store: store.ping())
    by_hand = sqlite3.connect(tmp_path / "live.db")
    by_hand.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    by_hand.close()
    with pytest.raises(OperatorError, match=r"newer Petstore.*upgrade"):
        StorePlace(tmp_path).use(lambda store: store.ping())


def test_a_file_that_is_no_database_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "live.db").write_bytes(b"something else entirely, longer than a header" * 50)
    with pytest.raises(OperatorError, match="not a Petstore database"):
        StorePlace(tmp_path).use(lambda store: store.ping())


def test_the_log_stays_bounded_under_a_permanent_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "WAL_MAX", 256 * 1024)

    async def work(store: Store) -> int:
        reader = connect(tmp_path / "live.db", readonly=True)
        largest = 0
        for _ in range(600):
            await asyncio.gather(*(store.add(NewPet("x" * 250, 1), NOW) for _ in range(10)))
            reader.execute("SELECT count(*) FROM pets").fetchall()
            largest = max(largest, (tmp_path / "live.db-wal").stat().st_size)
        reader.close()
        return largest

    assert StorePlace(tmp_path).use(work) < 2 * 1024 * 1024  # left alone it grows to several times that


def opened(path: Path) -> list[str]:
    """What this process has open of a database: the file, its log and the index of that."""
    names = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [name for name in names if name.startswith(str(path))]


def test_a_store_that_is_closed_has_written_all_and_holds_nothing(tmp_path: Path) -> None:
    adding: list[asyncio.Future[Added]] = []
    kept: list[Store] = []  # what is forgotten is closed anyway

    async def work(store: Store) -> None:
        kept.append(store)
        adding.append(asyncio.ensure_future(store.add(NewPet("Rex", 1), NOW)))
        await asyncio.sleep(0)  # as far as the queue

    StorePlace(tmp_path).use(work)
    assert adding[0].result().pet.name == "Rex"
    for thread in threading.enumerate():
        if thread.name == "writer-live":
            thread.join(timeout=10)  # it has said that it is done
            assert not thread.is_alive()
    assert not opened(tmp_path / "live.db")


def test_reads_that_fail_are_an_outage_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("petstore.health.STEADY", 0.0)

    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        good = store._read
        store._read = connect(tmp_path / "live.db")
        store._read.close()
        with pytest.raises(Unavailable, match="ConnectionClosed"):
            await store.ping()
        assert store._reads.down
        store._read = good
        await store.ping()
        assert not store._reads.down

    StorePlace(tmp_path).use(work)


def test_a_copy_tells_of_every_byte_once_and_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("petstore.store.sqlite.backup.STEP", 10)
    StorePlace(tmp_path).use(lambda store: store.import_pets(batches(*("x" * 250 for _ in range(1_000))), DEED))
    snapshot = Snapshot(tmp_path / "live.db")
    told: list[int] = []
    meanwhile = connect(tmp_path / "live.db")

    def progress(size: int) -> None:
        told.append(size)
        meanwhile.execute("UPDATE pets SET name = 'later' WHERE id = 1000")

    snapshot.copy(tmp_path / "copy.db", progress)
    meanwhile.close()
    copied = connect(tmp_path / "copy.db", readonly=True)
    assert copied.execute("SELECT count(*), min(name) FROM pets").fetchall() == [(1_000, "x" * 250)]
    copied.close()
    assert opened(tmp_path / "live.db")
    snapshot.close()
    assert not opened(tmp_path / "live.db")
    assert sum(told) == snapshot.bytes == (tmp_path / "copy.db").stat().st_size
    assert len(told) > 5 and max(told) == 10 * 4096


def test_integrity_check_finds_damage(tmp_path: Path) -> None:
    StorePlace(tmp_path).use(lambda store: store.import_pets(batches(*["x" * 200] * 500), DEED))
    path = tmp_path / "live.db"
    assert StorePlace(tmp_path).use(lambda store: store.faults()) == []
    content = bytearray(path.read_bytes())
    content[-3 * 4096 :] = bytes(3 * 4096)
    path.write_bytes(content)
    assert StorePlace(tmp_path).use(lambda store: store.faults()) != []


def test_a_look_at_what_is_no_database_says_so_and_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"something else entirely, longer than a header" * 50)
    assert inspect(tmp_path / "text.db") == (["it is not a database"], 0, {}, None)
    (fault,), *rest = inspect(tmp_path)
    assert fault.startswith("it cannot be read: ") and rest == [0, {}, None]
