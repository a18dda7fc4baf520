"""What is special about the PostgreSQL store: its pool, its batches, its migrations, and PgBouncer in front of it."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from petstore.errors import OperatorError, Unavailable
from petstore.keys import digest_of, mint, new_key
from petstore.observability.metrics import STORE_BATCH, STORE_ERRORS, STORE_QUEUE
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store import Store, StorePolicy
from petstore.store.postgres import PostgresStore
from petstore.store.postgres import writer as writer_module
from petstore.store.postgres.pool import MIGRATIONS
from petstore.usage import Usage
from tests.backends import ANONYMOUS, Postgres, Process, missing, running
from tests.places import StorePlace
from tests.test_store import DEED, NOW

ONE = StorePolicy(pool_size=1)


def rows(postgres: Postgres, place: StorePlace, sql: str) -> list[Any]:
    return postgres.execute(sql, place.url)


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


def test_ids_are_drawn_and_committed_in_the_same_order(place: StorePlace) -> None:
    """Otherwise a reader could see an animal, go on from there, and never meet one with a lower id."""
    waiting = """SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
        WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"""

    async def work(store: Store) -> None:
        await store.ping()
        other = await asyncpg.connect(place.url)
        async with other.transaction():
            await other.execute(f"SELECT {writer_module.turn_of('petstore_live')}")
            adding = asyncio.gather(store.add(NewPet("Rex", 1), NOW), store.add_by_hand(NewPet("Ada", 1), DEED))
            while await other.fetchval(waiting) < 2:
                assert not adding.done()
                await asyncio.sleep(0.01)  # the poll of a condition, bounded by the patience of both
            insert = "INSERT INTO petstore_live.pets VALUES (DEFAULT, 'Mia', 1, 'sold') RETURNING id"
            first = await other.fetchval(insert)
        added, by_hand = await adding
        assert min(added.pet.id, by_hand.id) > first
        await other.close()

    place.use(work)


def test_the_queue_of_the_writer_is_finite(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_MAX", 10)
    monkeypatch.setattr(writer_module, "BATCH_MAX", 4)
    batches: list[float] = []
    queues: list[float] = []
    monkeypatch.setattr(STORE_BATCH, "observe", lambda size, environment: batches.append(size))
    monkeypatch.setattr(STORE_QUEUE, "set", lambda size, environment: queues.append(size))

    async def work(store: Store) -> None:
        errors = STORE_ERRORS.cells["live", "write"]
        adds = (store.add(NewPet("Rex", i), NOW) for i in range(30))
        outcomes = await asyncio.gather(*adds, return_exceptions=True)
        assert [isinstance(outcome, Unavailable) for outcome in outcomes] == [False] * 10 + [True] * 20
        assert STORE_ERRORS.cells["live", "write"] == errors + 20
        assert (batches, queues) == ([4, 4, 2], [10, 6, 2, 0])

    place.use(work)


def test_promises_of_long_ago_are_forgotten_some_at_a_time_once_a_minute(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PRUNE_MAX", 2)

    async def work(store: Store) -> None:
        async def promise(token: str, now: float, times: int = 2) -> str:
            """Forgetting comes after the answer: whoever asks again finds that it is over."""
            for _ in range(times):
                await store.add(NewPet("Rex", 1), now, IdempotencyKey("key_a", token, b"x" * 32))
            return "".join(row[0] for row in await other.fetch("SELECT token FROM idempotency ORDER BY token"))

        await store.ping()
        other = await asyncpg.connect(place.url, server_settings={"search_path": "petstore_live"})
        for token in "abc":
            await promise(token, NOW)
        await other.execute("UPDATE idempotency SET created = 1")
        assert await promise("d", NOW + 59) == "abcd"
        assert await promise("e", NOW + 60, times=3) == "de"  # there were more, so twice
        await other.execute("UPDATE idempotency SET created = 1 WHERE token = 'd'")
        assert await promise("f", NOW + 119) == "def"
        assert await promise("g", NOW + 120) == "efg"
        await other.execute("UPDATE idempotency SET created = 1 WHERE token = 'e'")
        await promise("h", NOW + 180, times=1)
        await store.close()  # what was begun is ended
        assert [row[0] for row in await other.fetch("SELECT token FROM idempotency ORDER BY token")] == ["f", "g", "h"]
        await other.close()

    place.use(work)


def test_two_nodes_keep_one_promise(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        other = place.open()
        for number in range(30):
            idempotency_key = IdempotencyKey("key_a", f"t{number}", b"body")
            both = await asyncio.gather(*(each.add(NewPet("Rex", 1), NOW, idempotency_key) for each in (store, other)))
            assert sorted(added.replayed for added in both) == [False, True]
            assert both[0].pet == both[1].pet
        await other.close()
        assert sum((await store.count()).values()) == 30

    place.use(work)


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
            shutil.chown(self.folder, ANONYMOUS)
            for file in self.folder.iterdir():
                shutil.chown(file, ANONYMOUS)

    def command(self) -> list[str]:
        return [self._program, str(self.folder / "pgbouncer.ini")]

    def start(self, **options: Any) -> None:
        rights = {"user": ANONYMOUS, "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
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
        await store.set_status([added[0].pet.id], "sold", DEED)
        await store.add_usage([Usage(key.id, 0, "ok", 1)], {key.id: NOW})
        again = [await store.add(NewPet("Rex", 1), NOW, IdempotencyKey(key.id, "t", b"")) for _ in range(2)]
        assert again[0].pet == again[1].pet
        assert sum((await store.count()).values()) == 301

    StorePlace(tmp_path, through).use(work, policy=StorePolicy(pool_size=20, pgbouncer=True))


def test_a_promise_that_vanishes_while_it_is_looked_for_is_an_outage(place: StorePlace) -> None:
    """The writer was told that the record exists; when it looks, another node has pruned it."""

    async def work(store: Store) -> list[Any]:
        assert isinstance(store, PostgresStore)
        job = writer_module._Job(
            asyncio.Future(), 0.0, NewPet("Rex", 1), NOW, IdempotencyKey("key_a", "once", bytes(32))
        )
        return await store._pool.run(lambda connection: store._writer._earlier(connection, [job]))

    (outcome,) = place.use(work)
    assert isinstance(outcome, Unavailable)
