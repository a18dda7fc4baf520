"""What only the SQLite store does: files, settings, migrations, snapshots and checks."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from harness.other_user import as_nobody, directory_of_nobody
from harness.stores import NOW, PATIENT, StorePlace, WatchedConnection, imported, opened, sqlite_store
from petstore.errors import IdempotencyMismatch, OperatorError, Unavailable
from petstore.observability import health
from petstore.observability.metrics import STORE_DOWN
from petstore.pets import IdempotencyKey, NewPet
from petstore.store.pets import page_sql
from petstore.store.schema import NEWEST_SCHEMA
from petstore.store.sqlite.backup import Snapshot
from petstore.store.sqlite.connection import FILE_PRAGMAS, PRAGMAS, WAL_PAGES, connect, translate
from petstore.store.sqlite.database import translated
from petstore.store.sqlite.doctor import FileReport, check_database_file
from petstore.store.sqlite.migrations import migrate
from petstore.store.sqlite.writer import WAL_MAX
from tests.marks import only_as_root

# Reading


@pytest.mark.parametrize("by_status", [False, True], ids=["all", "by status"])
def test_a_page_is_found_by_index_alone(tmp_path: Path, by_status: bool) -> None:
    StorePlace(tmp_path).use(lambda store: store.database.ping())
    sql = translated(page_sql("main", by_status=by_status))
    values = (0, 21, "sold") if by_status else (0, 21)
    with closing(connect(tmp_path / "live.db", readonly=True)) as connection:
        plan = [str(row[3]) for row in connection.execute("EXPLAIN QUERY PLAN " + sql, values)]
    assert plan and all(step.startswith("SEARCH") for step in plan), plan


def test_files_are_durable_and_use_a_write_ahead_log(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "live.db")) as connection:
        as_set = {name: connection.pragma(name) for name in (*FILE_PRAGMAS, *PRAGMAS)}
        stable_plans = connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1)
    assert stable_plans == 1
    assert as_set == {
        "journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 4096, "journal_size_limit": 16 * 1024 * 1024,
        "foreign_keys": 1, "trusted_schema": 0, "cache_size": -16384,
    }  # fmt: skip


def test_sizes_fit_together() -> None:
    assert WAL_MAX == 2 * WAL_PAGES * 4096  # above this size, a checkpoint waits for readers


def test_reads_cannot_write_and_need_no_waiting(tmp_path: Path) -> None:
    readers: list[apsw.Connection] = []

    class Kept(apsw.Connection):
        def __init__(self, *values: object, **options: object) -> None:
            super().__init__(*values, **options)  # type: ignore[arg-type]  # passed through
            readers.append(self)

    async def work() -> None:
        async with sqlite_store(tmp_path, kind=Kept) as store:
            assert store.pets.immediate
            (reader,) = readers  # the writer connects only when it is needed
            with pytest.raises(apsw.ReadOnlyError):
                reader.execute("DELETE FROM pets")

    asyncio.run(work())


def test_reads_that_fail_are_an_outage_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STEADY", 0.0)

    class Failing(WatchedConnection):
        fails = False

        def before(self, sql: str) -> None:
            if Failing.fails and sql.startswith("SELECT"):
                raise apsw.IOError("disk I/O error")

    async def work() -> None:
        async with sqlite_store(tmp_path, kind=Failing) as store:
            Failing.fails = True
            with pytest.raises(Unavailable, match="disk I/O error"):
                await store.database.ping()
            assert STORE_DOWN.cells["live", "read"] == 1
            Failing.fails = False
            await store.database.ping()
            assert STORE_DOWN.cells["live", "read"] == 0

    asyncio.run(work())


# Errors


def test_what_sqlite_reports_is_an_outage_and_ours_and_bugs_stay_themselves(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    for same in (
        IdempotencyMismatch("another body"),
        apsw.ConstraintError("a row"),
        apsw.SQLError("syntax"),
        ValueError(),
    ):
        assert translate(same, path) is same
    for reported in (apsw.IOError("disk I/O error"), apsw.FullError("full"), OSError("no space left on device")):
        outage = translate(reported, path)
        assert isinstance(outage, Unavailable) and outage.__cause__ is reported
    assert str(translate(apsw.IOError("disk I/O error"), path)) == "the store failed: IOError: disk I/O error"
    assert "petstore check" in str(translate(apsw.CorruptError("malformed"), path))


def test_file_of_a_newer_version_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    StorePlace(tmp_path).use(lambda store: store.database.ping())
    StorePlace(tmp_path).by_hand(f"PRAGMA user_version = {NEWEST_SCHEMA + 1}")
    with pytest.raises(OperatorError, match=r"newer Petstore.*upgrade"):
        StorePlace(tmp_path).use(lambda store: store.database.ping())


def test_file_that_is_no_database_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "live.db").write_bytes(b"something else entirely, longer than a header" * 50)
    with pytest.raises(OperatorError, match="not a Petstore database; restore a backup with `petstore restore"):
        StorePlace(tmp_path).use(lambda store: store.database.ping())


@only_as_root
def test_file_that_may_only_be_read_is_refused_with_a_clear_message() -> None:
    with directory_of_nobody() as directory:
        StorePlace(directory).use(lambda store: store.database.ping())
        (directory / "live.db-turn").unlink(missing_ok=True)
        error = as_nobody(lambda: migrate(directory / "live.db"))
        assert error.startswith(f"OperatorError: {directory}/live.db: cannot be opened for writing")


# Idempotency records


def test_old_idempotency_records_are_pruned_some_at_a_time_once_a_minute(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path, PATIENT._replace(pruned_records=2)) as store:
            other = connect(tmp_path / "live.db")

            async def tokens_after(token: str, now: float) -> str:
                await store.pets.add(NewPet("Rex", 1), now, IdempotencyKey("key_a", token, b""))
                return "".join(str(row[0]) for row in other.execute("SELECT token FROM idempotency ORDER BY token"))

            for token in "abc":
                await tokens_after(token, NOW)
            other.execute("UPDATE idempotency SET created = 1")
            assert await tokens_after("d", NOW + 59) == "abcd"
            assert await tokens_after("e", NOW + 60) == "cde"
            assert await tokens_after("f", NOW + 61) == "def"  # more records were due
            other.execute("UPDATE idempotency SET created = 1 WHERE token IN ('d', 'e')")
            assert await tokens_after("g", NOW + 120) == "defg"
            assert await tokens_after("h", NOW + 121) == "fgh"
            other.close()

    asyncio.run(work())


# Snapshots and checks


def many(count: int, length: int) -> list[NewPet]:
    return [NewPet("x" * length, 1)] * count


def test_snapshot_reports_every_byte_once_and_is_of_one_moment(tmp_path: Path) -> None:
    StorePlace(tmp_path).use(lambda store: imported(store, *many(1_000, 250)))
    snapshot = Snapshot(tmp_path / "live.db", step=10)
    reported: list[int] = []
    meanwhile = connect(tmp_path / "live.db")

    def progress(size: int) -> None:
        reported.append(size)
        meanwhile.execute("UPDATE pets SET name = 'later' WHERE id = 1000")

    snapshot.copy(tmp_path / "copy.db", progress)
    meanwhile.close()
    with closing(connect(tmp_path / "copy.db", readonly=True)) as copied:
        assert copied.execute("SELECT count(*), min(name) FROM pets").fetchall() == [(1_000, "x" * 250)]
    assert opened(tmp_path / "live.db")
    snapshot.close()
    assert not opened(tmp_path / "live.db")
    assert sum(reported) == snapshot.bytes == (tmp_path / "copy.db").stat().st_size
    assert len(reported) > 5 and max(reported) == 10 * 4096


def test_check_finds_damage(tmp_path: Path) -> None:
    StorePlace(tmp_path).use(lambda store: imported(store, *many(500, 200)))
    path = tmp_path / "live.db"
    report = check_database_file(path)
    assert (report.faults, report.schema, report.rows["pets"]) == ([], NEWEST_SCHEMA, 500)
    content = bytearray(path.read_bytes())
    third = len(content) // 3 // 4096 * 4096
    content[third:] = bytes(len(content) - third)
    path.write_bytes(content)
    assert check_database_file(path).faults != []


def test_check_waits_for_a_process_that_has_the_file_to_itself(tmp_path: Path) -> None:
    StorePlace(tmp_path).use(lambda store: store.database.ping())
    other = apsw.Connection(str(tmp_path / "live.db"))
    other.pragma("locking_mode", "EXCLUSIVE")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(apsw.BusyError):
        apsw.Connection(str(tmp_path / "live.db")).pragma("user_version")
    soon = threading.Timer(0.2, other.close)
    soon.start()
    assert check_database_file(tmp_path / "live.db").faults == []
    soon.join()


def test_check_of_what_is_no_database_says_so_and_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"something else entirely, longer than a header" * 50)
    report = check_database_file(tmp_path / "text.db")
    assert report.faults[0].startswith("it is not a database; restore a backup")
    assert report == FileReport(report.faults)
    report = check_database_file(tmp_path)
    assert report.faults[0].startswith("it cannot be read: ") and report == FileReport(report.faults)
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    assert check_database_file(tmp_path / "empty.db").faults == ["it has no tables"]
