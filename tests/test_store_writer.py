"""The writer of the SQLite store: group commit, queues and turns, outages, what it leaves behind."""

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from petstore.audit import AuditEntry
from petstore.errors import Unavailable
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store import COMMIT_SECONDS, PATIENCE, TICK, Store
from petstore.store.sqlite import SqliteStore
from petstore.store.sqlite import writer as writer_module
from petstore.store.sqlite.base import write_entry
from petstore.store.sqlite.file import BUSY_MILLISECONDS, WAL_PAGES, Turn, connect
from tests.places import StorePlace, opened

NOW = 1_800_000_000.0


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many writes each transaction has."""
    found: list[int] = []
    commit = writer_module.Writer._commit

    def counting(
        self: writer_module.Writer, connection: apsw.Connection, batch: list[object], rows: str | None
    ) -> object:
        found.append(len(batch))
        return commit(self, connection, batch, rows)  # type: ignore[arg-type]  # the same list

    monkeypatch.setattr(writer_module.Writer, "_commit", counting)
    return found


def test_concurrent_adds_share_transactions_and_each_gets_its_own_animal(tmp_path: Path, sizes: list[int]) -> None:
    async def work(store: Store) -> list[Added]:
        return await asyncio.gather(*(store.add(NewPet(f"Pet {i}", i), NOW) for i in range(500)))

    added = StorePlace(tmp_path).use(work)
    assert [(a.pet.name, a.pet.category_id) for a in added] == [(f"Pet {i}", i) for i in range(500)]
    assert len({a.pet.id for a in added}) == 500
    assert sum(sizes) == 500 and len(sizes) < 100


def test_who_may_take_long_has_a_transaction_of_its_own(tmp_path: Path, sizes: list[int]) -> None:
    async def work(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        longer = [store._writer.call(str, patience=PATIENCE + 1) for _ in range(2)]
        short = store._writer.add(NewPet("Rex", 1), NOW, None), store._writer.call(str)
        await asyncio.gather(*longer, *short, store._writer.call(str, patience=60))

    StorePlace(tmp_path).use(work)
    assert sizes == [1, 1, 2, 1]


def test_promises_of_long_ago_are_forgotten_some_at_a_time_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PRUNE_MAX", 2)

    async def work(store: Store) -> None:
        other = connect(tmp_path / "live.db")

        async def promise(token: str, now: float) -> str:
            await store.add(NewPet("Rex", 1), now, IdempotencyKey("key_a", token, b""))
            return "".join(row[0] for row in other.execute("SELECT token FROM idempotency ORDER BY token"))

        for token in "abc":
            await promise(token, NOW)
        other.execute("UPDATE idempotency SET created = 1")
        assert await promise("d", NOW + 59) == "abcd"
        assert await promise("e", NOW + 60) == "cde"
        assert await promise("f", NOW + 61) == "def"  # there were more
        other.execute("UPDATE idempotency SET created = 1 WHERE token IN ('d', 'e')")
        assert await promise("g", NOW + 120) == "defg"
        assert await promise("h", NOW + 121) == "fgh"
        other.close()

    StorePlace(tmp_path).use(work)


def test_a_call_that_fills_the_disk_is_told_with_its_cause_and_leaves_nothing_of_its_batch(tmp_path: Path) -> None:
    told: list[str] = []

    async def on_commit(subject: str) -> None:
        told.append(subject)

    def write_some(connection: apsw.Connection) -> None:
        write_entry(connection, AuditEntry(NOW, "a test", "write", "much", "x" * 1_000))

    def too_much(connection: apsw.Connection) -> None:
        connection.pragma("max_page_count", connection.pragma("page_count"))
        try:
            for _ in range(1_000):
                write_some(connection)
        finally:
            connection.pragma("max_page_count", 2**30)

    async def work() -> list[object]:
        store = SqliteStore(tmp_path / "live.db", "live", on_commit)
        writer = store._writer
        batch = writer.add(NewPet("Rex", 1), NOW, None), writer.call(too_much), writer.call(write_some, "keys")
        answers = await asyncio.gather(*batch, return_exceptions=True)
        assert store._rows("SELECT id FROM pets UNION ALL SELECT id FROM deeds", ()) == [] and not told
        await store.close()
        return list(answers)

    assert [str(each) for each in asyncio.run(work())] == ["the store failed: FullError: database or disk is full"] * 3


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


def test_a_lock_held_by_another_process_is_an_outage_that_heals(
    tmp_path: Path, connections: list[apsw.Connection]
) -> None:
    async def work(store: Store) -> None:
        await store.add(NewPet("Rex", 1), NOW)
        assert (connections[0].pragma("busy_timeout"), connections[0].pragma("cache_size")) == (0, -1024)
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
        assert connections[0].pragma("busy_timeout") == 0  # whoever has waited in turn sleeps for no lock again

    StorePlace(tmp_path).use(work)


def test_waits_and_sizes_fit_together() -> None:
    assert BUSY_MILLISECONDS / 1000 < PATIENCE < PATIENCE + COMMIT_SECONDS + TICK < 2  # seconds to a 503
    assert writer_module.WAL_MAX == 2 * WAL_PAGES * 4096 == 32 * 1024 * 1024  # only then insist


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[apsw.Connection]:
    """Those that writers have opened."""
    found: list[apsw.Connection] = []

    def watched(path: Path) -> apsw.Connection:
        found.append(connect(path))
        return found[-1]

    monkeypatch.setattr(writer_module, "connect", watched)
    return found


async def names(store: Store) -> list[str]:
    return [pet.name for pet in (await store.page(after=0, limit=9, status=None)).pets]


@pytest.mark.parametrize(
    "idempotency_key", [None, IdempotencyKey("key_a", "token", b"")], ids=["one statement", "a transaction"]
)
def test_a_full_store_is_an_outage_that_heals_while_reads_go_on(
    tmp_path: Path, connections: list[apsw.Connection], idempotency_key: IdempotencyKey | None
) -> None:
    async def work(store: Store) -> None:
        await store.add(NewPet("Rex", 1), NOW)
        # SQLite's own limit on the file: the same error as a full disk, without filling one.
        connections[0].execute(f"PRAGMA max_page_count = {connections[0].pragma('page_count')}")
        with pytest.raises(Unavailable, match="FullError"):
            adding = [store.add(NewPet("x" * 250, 1), NOW) for _ in range(200)]
            await asyncio.gather(store.add(NewPet("Mia", 1), NOW, idempotency_key), *adding)
        assert not connections[0].in_transaction
        assert await names(store) == ["Rex"]
        connections[0].execute("PRAGMA max_page_count = 1000000")
        assert (await store.add(NewPet("Max", 1), NOW)).pet.name == "Max"

    StorePlace(tmp_path).use(work)


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


def test_a_store_that_is_closed_has_written_all_and_holds_nothing(tmp_path: Path) -> None:
    adding: list[asyncio.Future[Added]] = []
    kept: list[Store] = []  # what is forgotten is closed anyway

    async def work(store: Store) -> None:
        kept.append(store)
        adding.append(asyncio.ensure_future(store.add(NewPet("Rex", 1), NOW)))
        await asyncio.sleep(0)  # as far as the queue

    StorePlace(tmp_path).use(work)
    assert isinstance(kept[0], SqliteStore) and kept[0]._writer._watchdog.cancelled()
    assert adding[0].result().pet.name == "Rex"
    for thread in threading.enumerate():
        if thread.name == "writer-live":
            thread.join(timeout=10)  # it has said that it is done
            assert not thread.is_alive()
    assert not opened(tmp_path / "live.db")
