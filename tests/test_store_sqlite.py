"""What is special about the SQLite store: files, migrations, copies, reads."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from petstore.audit import AuditEntry
from petstore.errors import IdempotencyConflict, OperatorError, Unavailable
from petstore.pets import IdempotencyKey, NewPet
from petstore.store import Store
from petstore.store.sqlite import SqliteStore
from petstore.store.sqlite.backup import Snapshot
from petstore.store.sqlite.doctor import inspect
from petstore.store.sqlite.file import FILE_PRAGMAS, MIGRATIONS, PRAGMAS, connect, migrate, translated
from tests.places import StorePlace, opened
from tests.users import as_nobody, folder_of_nobody, only_as_root

DEED = AuditEntry(5.0, "a test", "test", "x")
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


def test_what_sqlite_says_is_an_outage_and_what_we_say_stays() -> None:
    ours, theirs = IdempotencyConflict("in hand"), apsw.IOError("disk I/O error")
    assert translated(ours) is ours
    outage = translated(theirs)
    assert isinstance(outage, Unavailable) and outage.__cause__ is theirs
    assert str(outage) == "the store failed: IOError: disk I/O error"


def test_idempotency_records_are_pruned_after_a_day(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        for i in range(10):
            await store.add(NewPet("Rex", 1), NOW + i, IdempotencyKey("key_a", f"t{i}", b""))
        await store.add(NewPet("Rex", 1), NOW + 100_000, IdempotencyKey("key_a", "new", b""))

    StorePlace(tmp_path).use(work)
    connection = connect(tmp_path / "live.db", readonly=True)
    assert connection.execute("SELECT token FROM idempotency").fetchall() == [("new",)]
    connection.close()


def test_a_file_of_a_newer_version_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    StorePlace(tmp_path).use(lambda store: store.ping())
    by_hand = sqlite3.connect(tmp_path / "live.db")
    by_hand.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    by_hand.close()
    with pytest.raises(OperatorError, match=r"newer Petstore.*upgrade"):
        StorePlace(tmp_path).use(lambda store: store.ping())


def test_a_file_that_is_no_database_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "live.db").write_bytes(b"something else entirely, longer than a header" * 50)
    with pytest.raises(OperatorError, match="no database of Petstore's; bring a backup back with petstore restore"):
        StorePlace(tmp_path).use(lambda store: store.ping())


@only_as_root
def test_a_file_that_may_only_be_read_is_refused_with_a_clear_message() -> None:
    with folder_of_nobody() as folder:
        StorePlace(folder).use(lambda store: store.ping())
        (folder / "live.db-turn").unlink(missing_ok=True)
        said = as_nobody(lambda: migrate(folder / "live.db"))
        assert said.startswith(f"OperatorError: {folder}/live.db: cannot be opened for writing")


def test_reads_that_fail_are_an_outage_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("petstore.observability.health.STEADY", 0.0)

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
    assert snapshot._source.pragma("busy_timeout") == 1_200
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
    assert inspect(path).faults == []
    content = bytearray(path.read_bytes())
    content[-3 * 4096 :] = bytes(3 * 4096)
    path.write_bytes(content)
    assert inspect(path).faults != []


def test_a_look_waits_for_whoever_has_the_file_to_itself(tmp_path: Path) -> None:
    StorePlace(tmp_path).use(lambda store: store.ping())
    other = apsw.Connection(str(tmp_path / "live.db"))
    other.pragma("locking_mode", "EXCLUSIVE")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(apsw.BusyError):
        apsw.Connection(str(tmp_path / "live.db")).pragma("user_version")
    soon = threading.Timer(0.2, other.close)
    soon.start()
    assert inspect(tmp_path / "live.db").faults == []
    soon.join()


def test_a_look_at_what_is_no_database_says_so_and_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"something else entirely, longer than a header" * 50)
    (fault,), *nothing = inspect(tmp_path / "text.db")
    assert fault.startswith("it is no database; bring a backup back") and nothing == [0, {}, None]
    (fault,), *rest = inspect(tmp_path)
    assert fault.startswith("it cannot be read: ") and rest == [0, {}, None]


def test_an_import_that_is_given_up_while_it_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    async def batches() -> AsyncIterator[list[NewPet]]:
        yield [NewPet("x", 1)] * 5_000

    def pausing(_: object, row: Any) -> Any:
        reading.set()
        go_on.wait(timeout=10)
        return row

    async def work(store: Store) -> None:
        await store.add(NewPet("Rex", 1), NOW)  # so that the writer has its connection
        staging = apsw.Connection("")
        staging.set_row_trace(pausing)
        with monkeypatch.context() as slow:
            slow.setattr(apsw, "Connection", lambda _: staging)
            importing = asyncio.create_task(store.import_pets(batches(), DEED))
            assert await asyncio.to_thread(reading.wait, 10)
        importing.cancel()
        try:
            done, _ = await asyncio.wait([importing], timeout=0.1)
            assert not done  # the writer's thread still has the rows
        finally:
            go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await importing
        assert await store.newest() == 1
        with pytest.raises(apsw.ConnectionClosedError):
            staging.pragma("page_count")

    StorePlace(tmp_path).use(work)


def test_an_import_without_room_for_its_rows_is_an_outage_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def batches() -> AsyncIterator[list[NewPet]]:
        yield [NewPet("x" * 255, 1)] * 1_000

    async def work(store: Store) -> None:
        small = apsw.Connection("")
        small.pragma("max_page_count", 10)
        with monkeypatch.context() as fault, pytest.raises(Unavailable, match="database or disk is full"):
            fault.setattr(apsw, "Connection", lambda _: small)
            await store.import_pets(batches(), AuditEntry(1.0, "a test", "import", "x"))
        assert await store.newest() == 0
        with pytest.raises(apsw.ConnectionClosedError):
            small.pragma("page_count")

    StorePlace(tmp_path).use(work)
