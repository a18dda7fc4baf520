"""What is special about the PostgreSQL store: its pool, its batches, its migrations, and PgBouncer in front of it."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from petstore import health as health_module
from petstore.errors import OperatorError, Unavailable
from petstore.health import Health
from petstore.keys import digest_of, mint, new_key
from petstore.ledger import Usage
from petstore.pets import Added, NewPet, Once, PetStatus
from petstore.store import Store, StorePolicy
from petstore.store.postgres import PostgresStore
from petstore.store.postgres import pool as pool_module
from petstore.store.postgres.base import watched
from petstore.store.postgres.pool import MIGRATIONS
from tests.backends import NOBODY, Postgres, Process, missing, running
from tests.places import StorePlace
from tests.test_store import DEED, NOW

ONE = StorePolicy(pool_size=1)


@pytest.fixture
def place(postgres: Postgres, tmp_path: Path) -> StorePlace:
    return StorePlace(tmp_path, postgres.url())


def rows(postgres: Postgres, place: StorePlace, sql: str) -> list[Any]:
    return postgres.execute(sql, place.url)


def nobody_is_left(store: Store) -> bool:
    """Whether the pool knows of no request that waits for a connection or has one."""
    assert isinstance(store, PostgresStore)
    return store._pool._waiting == 0 and not store._pool._running


@pytest.mark.parametrize("status", ["", "status = 'sold' AND "])
def test_a_page_is_found_by_index_alone(postgres: Postgres, place: StorePlace, status: str) -> None:
    place.use(lambda store: store.ping())
    rows(
        postgres,
        place,
        "INSERT INTO petstore_live.pets SELECT n, 'x', 1, (ARRAY['available', 'pending', 'sold'])[n % 3 + 1]"
        " FROM generate_series(1, 20000) AS n",
    )
    rows(postgres, place, "ANALYZE petstore_live.pets")
    plan = rows(
        postgres, place, f"EXPLAIN SELECT * FROM petstore_live.pets WHERE {status}id > 9000 ORDER BY id LIMIT 21"
    )
    text = "\n".join(row[0] for row in plan)
    assert "Index Scan" in text and "Sort" not in text and "Seq Scan" not in text, text


def test_concurrent_adds_share_statements_and_each_gets_its_own_animal(postgres: Postgres, place: StorePlace) -> None:
    async def work(store: Store) -> list[Added]:
        return await asyncio.gather(*(store.add(NewPet(f"Pet {i}", i), NOW) for i in range(500)))

    added = place.use(work)
    assert [(a.pet.name, a.pet.category_id) for a in added] == [(f"Pet {i}", i) for i in range(500)]
    (found,) = rows(postgres, place, "SELECT count(DISTINCT xmin::text) AS n, count(*) AS all FROM petstore_live.pets")
    assert found["all"] == 500 and found["n"] <= 3  # transactions that wrote them


def test_a_bad_row_never_fails_its_neighbours(place: StorePlace) -> None:
    """No request can get so far with a name like that: it is what a bug would look like."""

    async def work(store: Store) -> None:
        names = ["Rex", "a\0b", "Mia"]
        first, bad, last = await asyncio.gather(
            *(store.add(NewPet(name, 1), NOW) for name in names), return_exceptions=True
        )
        assert isinstance(first, Added) and isinstance(last, Added) and isinstance(bad, Unavailable)
        assert sum((await store.count()).values()) == 2

    place.use(work)


def test_two_nodes_keep_one_promise(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        other = place.open()
        for number in range(30):
            once = Once("key_a", f"t{number}", b"body")
            both = await asyncio.gather(*(each.add(NewPet("Rex", 1), NOW, once) for each in (store, other)))
            assert sorted(added.replayed for added in both) == [False, True]
            assert both[0].pet == both[1].pet
        await other.close()
        assert sum((await store.count()).values()) == 30

    place.use(work)


def test_nobody_waits_longer_for_a_connection_than_patience_allows(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.ping()
        hog = await asyncpg.connect(place.url)
        await hog.execute("BEGIN; LOCK TABLE petstore_live.pets IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        outcomes = await asyncio.gather(
            *(store.pet(number) for number in range(20)), store.add(NewPet("Rex", 1), NOW), return_exceptions=True
        )
        assert all(isinstance(outcome, Unavailable) for outcome in outcomes), outcomes
        assert time.monotonic() - began < 2.5  # 1.5 s, and room for a busy machine
        await hog.close()
        assert (await store.add(NewPet("Rex", 1), NOW)).pet.name == "Rex"
        assert nobody_is_left(store)

    place.use(work, policy=ONE)


def test_the_queue_for_connections_is_finite(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "WAITING_MAX", 10)

    async def work(store: Store) -> None:
        outcomes = await asyncio.gather(*(store.pet(number) for number in range(50)), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Unavailable)]
        assert len(refused) == 40 and all("too many" in str(outcome) for outcome in refused)
        assert nobody_is_left(store)
        assert await store.pet(1) is None

    place.use(work, policy=ONE)


def test_a_caller_that_gives_up_leaves_the_connection_in_order(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        for number in range(1, 31):
            await store.add(NewPet(f"Pet {number}", number), NOW)
        for _ in range(20):
            tasks = [asyncio.create_task(store.pet(number)) for number in range(1, 31)]
            await asyncio.sleep(0.001)  # a moment to give up at
            for task in tasks[::2]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            for number, pet in enumerate(found, 1):
                assert isinstance(pet, asyncio.CancelledError) or getattr(pet, "category_id", None) == number

    place.use(work, policy=StorePolicy(pool_size=2))


async def who_serves(store: Store, times: int = 1) -> set[int]:
    """The processes of the server that answer so many requests at once."""
    assert isinstance(store, PostgresStore)
    pool, sql = store._pool, f"SELECT pg_backend_pid() FROM pg_sleep({0.2 if times > 1 else 0})"
    return set(await asyncio.gather(*(pool.run(lambda c: c.fetchval(sql)) for _ in range(times))))


def test_a_connection_is_kept_after_a_complaint_and_not_after_a_timeout(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        assert isinstance(store, PostgresStore)
        before = await who_serves(store)
        with pytest.raises(Unavailable, match="DivisionByZero"):
            await store._pool.run(lambda connection: connection.fetch("SELECT 1 / 0"))
        assert await who_serves(store) == before
        with pytest.raises(Unavailable, match="in time"):
            await store._pool.run(lambda connection: connection.fetch("SELECT pg_sleep(30)"), 0.2)
        assert await who_serves(store) != before

    place.use(work, policy=ONE)


def test_a_statement_that_takes_too_long_is_ended_unless_it_is_an_operators(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "STATEMENT_MILLISECONDS", 100)

    async def work(store: Store) -> None:
        assert isinstance(store, PostgresStore)
        before = await who_serves(store)
        with pytest.raises(Unavailable, match="QueryCanceled"):
            await store._rows("SELECT pg_sleep(1)")
        await store._rows_at_leisure("SELECT pg_sleep(0.2)")
        assert await who_serves(store) == before  # nothing was wrong with the connection

    place.use(work, policy=ONE)


def test_where_one_connection_meets_a_demoted_primary_none_is_kept(place: StorePlace) -> None:
    async def change(connection: Any) -> None:
        await connection.execute("SET default_transaction_read_only = on")
        await connection.execute("CREATE TABLE demoted ()")

    async def work(store: Store) -> None:
        assert isinstance(store, PostgresStore)
        before = await who_serves(store, 2)
        with pytest.raises(Unavailable, match="ReadOnly"):
            await store._pool.run(change)
        after = await who_serves(store, 2)
        assert len(before) == len(after) == 2 and not before & after

    place.use(work, policy=StorePolicy(pool_size=2))


@pytest.mark.parametrize(
    ("url", "writable"),
    [("postgresql://a,b/x", True), ("postgresql://a/x", False), ("postgresql://a/x?options=-c,y", False)],
)
def test_of_several_hosts_the_one_that_takes_writes_is_wanted(url: str, *, writable: bool) -> None:
    pool = pool_module.PostgresPool(url, size=1, pgbouncer=False, schemas=[])
    assert (pool._options().get("target_session_attrs") == "read-write") == writable


def test_options_that_make_no_sense_are_the_operators_to_mend(tmp_path: Path) -> None:
    place = StorePlace(tmp_path, "postgresql://127.0.0.1:1/x?sslmode=nonsense")
    with pytest.raises(OperatorError, match="--store"):
        place.use(lambda store: store.ping())


def test_a_store_that_is_closed_has_let_go_of_its_connections(place: StorePlace) -> None:
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'petstore' AND datname = current_database()"

    async def work() -> None:
        other = await asyncpg.connect(place.url)
        store = place.open()
        await store.ping()
        assert await other.fetchval(ours) == 1
        await store.close()
        async with asyncio.timeout(10):  # the server notices when it comes to it
            while await other.fetchval(ours) > 0:
                await asyncio.sleep(0.01)
        await other.close()

    asyncio.run(work())


def test_an_outage_begins_with_a_call_that_fails_and_ends_with_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "STEADY", 0)
    health = Health("store", "live", "read")

    async def work() -> None:
        async def fails() -> None:
            raise Unavailable("a test")

        for _ in range(2):
            with pytest.raises(Unavailable):
                await watched(health, fails())
            assert health.down
            assert await watched(health, asyncio.sleep(0, "an answer")) == "an answer"
            assert not health.down

    asyncio.run(work())


def test_statements_have_a_time_limit_on_the_server_too(place: StorePlace) -> None:
    async def work(store: Store) -> str:
        (row,) = await store._rows("SHOW statement_timeout")  # type: ignore[attr-defined]  # a look inside
        return str(row[0])

    assert place.use(work) == "1350ms"


def test_a_database_of_a_newer_version_is_refused_with_a_clear_message(postgres: Postgres, place: StorePlace) -> None:
    place.use(lambda store: store.ping())
    rows(postgres, place, f"INSERT INTO petstore_staging.migrations VALUES ({len(MIGRATIONS) + 1})")
    with pytest.raises(OperatorError, match=r"newer Petstore.*upgrade"):
        place.use(lambda store: store.ping())


def test_missing_rights_are_told_with_what_to_do(postgres: Postgres, place: StorePlace) -> None:
    assert place.url is not None
    rows(postgres, place, "DROP ROLE IF EXISTS guest")
    rows(postgres, place, "CREATE ROLE guest LOGIN")
    with pytest.raises(OperatorError, match="GRANT CREATE"):
        StorePlace(place.data, place.url.replace("pets@", "guest@")).use(lambda store: store.ping())


@pytest.mark.parametrize("url", ["mysql://x/y", "postgres", "sqlite:///x"])
def test_an_unknown_scheme_is_refused_in_one_line(tmp_path: Path, url: str) -> None:
    with pytest.raises(OperatorError, match="--store"):
        StorePlace(tmp_path, url).use(lambda store: store.ping())


class PgBouncer(Process):
    """In transaction mode, with fewer connections than its clients have."""

    def __init__(self, postgres: Postgres) -> None:
        super().__init__("pgbouncer")
        program = shutil.which("pgbouncer")
        if program is None:
            missing("PgBouncer", "Debian's package pgbouncer")
        self._program = str(program)
        self._postgres = postgres
        (self.folder / "users").write_text('"pets" ""\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={postgres.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self.folder / 'users'}\npool_mode = transaction\n"
            "default_pool_size = 2\nmax_client_conn = 100\n"
        )
        if os.geteuid() == 0:
            shutil.chown(self.folder, NOBODY)
            for file in self.folder.iterdir():
                shutil.chown(file, NOBODY)

    def command(self) -> list[str]:
        return [self._program, str(self.folder / "pgbouncer.ini")]

    def start(self, **options: Any) -> None:
        rights = {"user": NOBODY, "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        super().start(**rights, **options)

    def answers(self) -> bool:
        with contextlib.suppress(OSError, TimeoutError, AssertionError):
            return bool(self._postgres.execute("SELECT 1", f"postgresql://pets@127.0.0.1:{self.port}/postgres"))
        return False


@pytest.fixture
def bouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    with running(PgBouncer(postgres)) as server:
        yield server


def test_behind_pgbouncer_in_transaction_mode(postgres: Postgres, bouncer: PgBouncer, tmp_path: Path) -> None:
    through = postgres.url().replace(f":{postgres.port}/", f":{bouncer.port}/")

    async def work(store: Store) -> None:
        key = new_key("live", "free", now=NOW)
        await store.add_key(key, digest_of(mint("live")), DEED)
        added = await asyncio.gather(*(store.add(NewPet(f"Pet {i}", i), NOW) for i in range(300)))
        found = await asyncio.gather(*(store.pet(each.pet.id) for each in added))
        assert [pet and pet.name for pet in found] == [f"Pet {i}" for i in range(300)]
        await store.set_status([added[0].pet.id], PetStatus.sold, DEED)
        await store.add_usage([Usage(key.id, 0, "ok", 1)], {key.id: NOW})
        again = [await store.add(NewPet("Rex", 1), NOW, Once(key.id, "t", b"")) for _ in range(2)]
        assert again[0].pet == again[1].pet
        assert sum((await store.count()).values()) == 301

    StorePlace(tmp_path, through).use(work, policy=StorePolicy(pool_size=20, pgbouncer=True))
