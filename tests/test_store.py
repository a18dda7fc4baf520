"""The store's contract, and what is special about SQLite: files, migrations, group commit, several writers."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

from petstore.errors import IdempotencyConflict, IdempotencyMismatch, OperatorError, Unavailable
from petstore.keys import digest_of, mint, new_key
from petstore.ledger import Deed, Usage
from petstore.pets import Added, NewPet, Once, PetStatus
from petstore.store import Store, Subject, open_store
from petstore.store import sqlite_writer as writer_module
from petstore.store.sqlite_file import MIGRATIONS, connect

T = TypeVar("T")
DEED = Deed(5.0, "a test", "test", "x")
NOW = 1_800_000_000.0


def with_store(data: Path, work: Callable[[Store], Awaitable[T]], changes: list[Subject] | None = None) -> T:
    async def on_commit(subject: Subject) -> None:
        if changes is not None:
            changes.append(subject)

    async def inside() -> T:
        store = open_store(None, data, "live", on_commit)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(inside())


async def batches(*names: str) -> AsyncIterator[list[NewPet]]:
    for name in names:
        yield [NewPet(name, 1)]


def test_added_animals_outlive_the_process_and_ids_grow(tmp_path: Path) -> None:
    async def add(store: Store) -> Added:
        return await store.add(NewPet("Rex", 7, PetStatus.pending), NOW)

    first, second = with_store(tmp_path, add), with_store(tmp_path, add)
    assert second.pet.id > first.pet.id
    found = with_store(tmp_path, lambda store: store.pet(first.pet.id))
    assert found == first.pet


def test_an_id_is_never_reused_even_when_the_newest_animal_is_gone(tmp_path: Path) -> None:
    async def add(store: Store) -> int:
        return (await store.add(NewPet("Rex", 1), NOW)).pet.id

    newest = with_store(tmp_path, add)
    with sqlite3.connect(tmp_path / "live.db") as by_hand:
        by_hand.execute("DELETE FROM pets")
    by_hand.close()
    assert with_store(tmp_path, add) > newest


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

    added = with_store(tmp_path, work)
    assert [(a.pet.name, a.pet.category_id) for a in added] == [(f"Pet {i}", i) for i in range(500)]
    assert len({a.pet.id for a in added}) == 500
    assert sum(sizes) == 500 and len(sizes) < 100


def test_a_write_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        good = asyncio.gather(*(store.add(NewPet(f"Pet {i}", i), NOW) for i in range(20)))
        key, secret = new_key("live", "free", now=NOW), digest_of(mint("live"))
        twice = asyncio.gather(
            store.add_key(key, secret, DEED), store.add_key(key, secret, DEED), return_exceptions=True
        )
        first, second = await twice
        assert first is None and isinstance(second, Unavailable)
        assert len(await good) == 20
        assert sum((await store.count()).values()) == 20

    with_store(tmp_path, work)


def test_commit_tells_what_has_changed_before_the_caller_hears(tmp_path: Path) -> None:
    changes: list[Subject] = []

    async def work(store: Store) -> None:
        await store.add(NewPet("Rex", 1), NOW)
        assert changes == ["catalogue"]
        await store.add_key(new_key("live", "free", now=NOW), digest_of(mint("live")), DEED)
        assert changes == ["catalogue", "keys"]
        await store.add_usage([Usage("key_a", 0, "ok", 3)], {"key_a": NOW})
        assert changes == ["catalogue", "keys"]

    with_store(tmp_path, work, changes)


def test_pages_are_keyset_pages(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        for i in range(7):
            await store.add(NewPet(f"Pet {i}", i, PetStatus.sold if i % 2 else PetStatus.available), NOW)
        page = await store.page(after=2, limit=3, status=None)
        assert ([p.id for p in page.pets], page.more) == ([3, 4, 5], True)
        page = await store.page(after=0, limit=3, status=PetStatus.sold)
        assert ([p.id for p in page.pets], page.more) == ([2, 4, 6], False)

    with_store(tmp_path, work)


@pytest.mark.parametrize("sql", ["_PAGE", "_PAGE_BY_STATUS"])
def test_a_page_is_found_by_index_alone(tmp_path: Path, sql: str) -> None:
    from petstore.store import sqlite

    with_store(tmp_path, lambda store: store.ping())
    connection = connect(tmp_path / "live.db", readonly=True)
    bindings = (0, 21) if sql == "_PAGE" else ("sold", 0, 21)
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + getattr(sqlite, sql), bindings)]
    connection.close()
    assert plan and all(step.startswith("SEARCH") for step in plan), plan


def test_idempotency(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        new = NewPet("Rex", 1)
        first = await store.add(new, NOW, Once("key_a", "t", b"body"))
        await store.set_status(first.pet.id, PetStatus.sold, DEED)
        again = await store.add(new, NOW + 5, Once("key_a", "t", b"body"))
        assert again == Added(first.pet, replayed=True)
        with pytest.raises(IdempotencyMismatch):
            await store.add(new, NOW, Once("key_a", "t", b"other"))
        other_key = await store.add(new, NOW, Once("key_b", "t", b"body"))
        assert other_key.pet.id != first.pet.id and not other_key.replayed
        day_later = await store.add(new, NOW + 86_400, Once("key_a", "t", b"body"))
        assert day_later.pet.id != first.pet.id and not day_later.replayed

    with_store(tmp_path, work)


def test_idempotency_records_are_pruned_after_a_day(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        for i in range(10):
            await store.add(NewPet("Rex", 1), NOW + i, Once("key_a", f"t{i}", b""))
        await store.add(NewPet("Rex", 1), NOW + 100_000, Once("key_a", "new", b""))

    with_store(tmp_path, work)
    connection = connect(tmp_path / "live.db", readonly=True)
    assert connection.execute("SELECT token FROM idempotency").fetchall() == [("new",)]
    connection.close()


def test_a_second_request_while_the_first_runs_is_a_conflict(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        once = Once("key_a", "t", b"body")
        first, second = await asyncio.gather(
            store.add(NewPet("Rex", 1), NOW, once), store.add(NewPet("Rex", 1), NOW, once), return_exceptions=True
        )
        assert isinstance(first, Added) and isinstance(second, IdempotencyConflict)

    with_store(tmp_path, work)


def test_an_import_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[list[NewPet]]:
        yield [NewPet("Rex", 1)] * 5_000
        raise OperatorError("line 5001: bad")

    async def work(store: Store) -> None:
        with pytest.raises(OperatorError):
            await store.import_pets(broken(), DEED)
        assert sum((await store.count()).values()) == 0
        assert await store.import_pets(batches("a", "b"), DEED) == 2
        assert [deed.detail for _, deed in await store.deeds()] == ["2 animals"]

    with_store(tmp_path, work)


def test_a_second_process_writing_at_the_same_time_is_normal(tmp_path: Path) -> None:
    async def work(store: Store) -> int:
        other = open_store(None, tmp_path, "live", lambda _: asyncio.sleep(0))
        both = [store, other] * 200
        await asyncio.gather(*(one.add(NewPet("Rex", 1), NOW) for one in both))
        await other.close()
        return sum((await store.count()).values())

    assert with_store(tmp_path, work) == 400


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

    with_store(tmp_path, work)


def test_a_full_store_is_an_outage_that_heals_while_reads_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            await asyncio.gather(*(store.add(NewPet("x" * 250, 1), NOW) for _ in range(200)))
        assert [pet.name for pet in (await store.page(after=0, limit=9, status=None)).pets] == ["Rex"]
        opened[0].execute("PRAGMA max_page_count = 1000000")
        assert (await store.add(NewPet("Max", 1), NOW)).pet.name == "Max"

    with_store(tmp_path, work)


def test_a_file_of_a_newer_version_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    with_store(tmp_path, lambda store: store.ping())
    by_hand = sqlite3.connect(tmp_path / "live.db")
    by_hand.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    by_hand.close()
    with pytest.raises(OperatorError, match=r"newer Petstore.*upgrade"):
        with_store(tmp_path, lambda store: store.ping())


def test_a_file_that_is_no_database_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "live.db").write_bytes(b"something else entirely, longer than a header" * 50)
    with pytest.raises(OperatorError, match="not a Petstore database"):
        with_store(tmp_path, lambda store: store.ping())


def test_files_are_durable_and_use_a_write_ahead_log(tmp_path: Path) -> None:
    connection = connect(tmp_path / "live.db")
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2  # FULL
    connection.close()


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

    assert with_store(tmp_path, work) < 8 * 1024 * 1024


def test_usage_adds_up_and_last_use_never_goes_back(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        key = new_key("live", "free", now=NOW)
        await store.add_key(key, digest_of(mint("live")), DEED)
        await store.add_usage([Usage(key.id, 3600, "ok", 2), Usage(key.id, 3600, "refused", 1)], {key.id: 9_000.0})
        await store.add_usage([Usage(key.id, 3600, "ok", 5), Usage(key.id, 7200, "ok", 1)], {key.id: 8_000.0})
        assert await store.usage(since=0, key_id=key.id) == [
            Usage(key.id, 3600, "ok", 7),
            Usage(key.id, 3600, "refused", 1),
            Usage(key.id, 7200, "ok", 1),
        ]
        assert await store.usage(since=7200) == [Usage(key.id, 7200, "ok", 1)]
        shown = await store.key(key.id)
        assert shown is not None and shown.last_used == 9_000.0

    with_store(tmp_path, work)


def test_integrity_check_finds_damage(tmp_path: Path) -> None:
    with_store(tmp_path, lambda store: store.import_pets(batches(*["x" * 200] * 500), DEED))
    path = tmp_path / "live.db"
    assert with_store(tmp_path, lambda store: store.faults()) == []
    content = bytearray(path.read_bytes())
    content[-3 * 4096 :] = bytes(3 * 4096)
    path.write_bytes(content)
    assert with_store(tmp_path, lambda store: store.faults()) != []
