"""What only the PostgreSQL store does: batches, the order of ids, migrations, and connections through PgBouncer."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from harness.backends import ANONYMOUS, Postgres, Process, program, running
from harness.stores import BY, NOW, PATIENT, StorePlace, imported
from petstore.edits import Conflict
from petstore.errors import IdempotencyMismatch, OperatorError, Unavailable
from petstore.keys import KeyChanges, mint, new_key
from petstore.observability.metrics import STORE_BATCH, STORE_ERRORS, STORE_QUEUE
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store import Store, StorePolicy
from petstore.store.pets import page_sql
from petstore.store.postgres.batched_creates import lock_pet_ids
from petstore.store.postgres.pool import is_gone, translate
from petstore.store.schema import NEWEST_SCHEMA
from petstore.usage import OperationUsage

# Reading


def plan_of(place: StorePlace, sql: str, *values: object) -> str:
    for number, value in enumerate(values, 1):
        sql = sql.replace(f"${number}", repr(value))
    return "\n".join(row[0] for row in place.by_hand(f"EXPLAIN {sql}"))


@pytest.mark.parametrize("by_status", [False, True], ids=["all", "by status"])
def test_a_page_is_found_by_index_alone(place: StorePlace, by_status: bool) -> None:
    place.use(lambda store: store.database.ping())
    place.by_hand(
        "INSERT INTO pets (id, name, category_id, status, added_at)"
        " SELECT n, 'x', 1, (ARRAY['available', 'pending', 'sold'])[n % 3 + 1], 1"
        " FROM generate_series(1, 20000) AS n"
    )
    place.by_hand("ANALYZE pets")
    text = plan_of(place, page_sql("petstore_live", by_status=by_status), 9_000, 21, "sold")
    assert "Index Scan" in text and "Sort" not in text and "Seq Scan" not in text, text


# Writing


def test_concurrent_adds_share_statements_and_each_gets_its_own_animal(place: StorePlace) -> None:
    async def work(store: Store) -> list[Added]:
        return await asyncio.gather(*(store.pets.add(NewPet(f"Pet {i}", i), NOW) for i in range(500)))

    added = place.use(work)
    assert [(a.pet.name, a.pet.category_id) for a in added] == [(f"Pet {i}", i) for i in range(500)]
    (found,) = place.by_hand("SELECT count(DISTINCT xmin::text) AS n, count(*) AS all FROM pets")
    assert found["all"] == 500 and found["n"] <= 3  # at most three transactions


def test_a_bad_row_never_fails_its_neighbours(place: StorePlace) -> None:
    """Validation refuses such a name, so only a bug could pass it to the store."""

    async def work(store: Store) -> None:
        first, bad, last = await asyncio.gather(
            *(store.pets.add(NewPet(name, 1), NOW) for name in ("Rex", "a\0b", "Mia")), return_exceptions=True
        )
        assert isinstance(first, Added) and isinstance(last, Added) and isinstance(bad, asyncpg.DataError)
        assert sum((await store.pets.count()).values()) == 2

    place.use(work)


def test_ids_are_drawn_and_committed_in_the_same_order(place: StorePlace) -> None:
    """Otherwise, a client that pages through the list could miss an animal that is committed after a higher id."""
    waiting = """SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
        WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"""

    async def work(store: Store) -> None:
        other = await asyncpg.connect(place.url)
        async with other.transaction():
            await other.execute(f"SELECT {lock_pet_ids('petstore_live')}")
            adding = asyncio.gather(
                store.pets.add(NewPet("Rex", 1), NOW),
                store.pets.add_by_hand(NewPet("Ada", 1), BY),
                imported(store, NewPet("Bo", 1)),
            )
            while await other.fetchval(waiting) < 3:
                assert not adding.done()
                await asyncio.sleep(0.01)  # polls until all three wait or time out
            insert = (
                "INSERT INTO petstore_live.pets (name, category_id, status, added_at) VALUES ('Mia', 1, 'sold', 1)"
                " RETURNING id"
            )
            first = await other.fetchval(insert)
        added, by_hand, _ = await adding
        page = await store.pets.page(after=0, limit=9, status=None)
        assert page.pets[0].id == first < min(added.pet.id, by_hand.id)
        assert len(page.pets) == 4
        await other.close()

    place.use(work, policy=StorePolicy(bounds=PATIENT))


def test_queue_of_the_writer_is_finite(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[float] = []
    queues: list[float] = []
    monkeypatch.setattr(STORE_BATCH, "observe", lambda size, environment: batches.append(size))
    monkeypatch.setattr(STORE_QUEUE, "set", lambda size, environment: queues.append(size))

    async def work(store: Store) -> None:
        errors = STORE_ERRORS.cells["live", "write"]
        adds = (store.pets.add(NewPet("Rex", i), NOW) for i in range(30))
        outcomes = await asyncio.gather(*adds, return_exceptions=True)
        assert [isinstance(outcome, Unavailable) for outcome in outcomes] == [False] * 10 + [True] * 20
        assert STORE_ERRORS.cells["live", "write"] == errors + 20
        assert (batches, queues) == ([4, 4, 2], [10, 6, 2, 0])

    place.use(work, policy=StorePolicy(bounds=PATIENT._replace(queued_writes=10, batch=4)))


# Idempotency records


def test_old_idempotency_records_are_pruned_some_at_a_time_once_a_minute(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        async def tokens_after(token: str, now: float, times: int = 2) -> str:
            """Returns the tokens stored after `times` requests. Pruning follows a response, so one is not enough."""
            for _ in range(times):
                await store.pets.add(NewPet("Rex", 1), now, IdempotencyKey("key_a", token, b"x" * 32))
            return "".join(row[0] for row in await other.fetch("SELECT token FROM idempotency ORDER BY token"))

        other = await asyncpg.connect(place.url, server_settings={"search_path": "petstore_live"})
        for token in "abc":
            await tokens_after(token, NOW)
        await other.execute("UPDATE idempotency SET created = 1")
        assert await tokens_after("d", NOW + 59) == "abcd"
        assert await tokens_after("e", NOW + 60, times=3) == "de"  # took two rounds, because more records were due
        await other.execute("UPDATE idempotency SET created = 1 WHERE token = 'd'")
        assert await tokens_after("f", NOW + 119) == "def"
        assert await tokens_after("g", NOW + 120) == "efg"
        await other.execute("UPDATE idempotency SET created = 1 WHERE token = 'e'")
        await tokens_after("h", NOW + 180, times=1)
        await store.database.close()  # waits for the pruning that has begun
        assert [row[0] for row in await other.fetch("SELECT token FROM idempotency ORDER BY token")] == ["f", "g", "h"]
        await other.close()

    place.use(work, policy=StorePolicy(bounds=PATIENT._replace(pruned_records=2)))


def test_two_nodes_answer_one_idempotency_key_with_one_animal(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with place.open() as other:
            for number in range(30):
                key = IdempotencyKey("key_a", f"t{number}", b"body")
                both = await asyncio.gather(*(each.pets.add(NewPet("Rex", 1), NOW, key) for each in (store, other)))
                assert sorted(added.replayed for added in both) == [False, True]
                assert both[0].pet == both[1].pet
        assert sum((await store.pets.count()).values()) == 30

    place.use(work)


# Errors


def test_what_the_server_reports_is_an_outage_and_ours_and_bugs_stay_themselves() -> None:
    for same in (IdempotencyMismatch("x"), asyncpg.UniqueViolationError("x"), asyncpg.PostgresSyntaxError("x"),
                 asyncpg.CharacterNotInRepertoireError("x"), ValueError("x")):  # fmt: skip
        assert translate(same) is same
    for reported in (asyncpg.AdminShutdownError("x"), asyncpg.DeadlockDetectedError("x"), ConnectionResetError("x"),
                     asyncpg.InsufficientPrivilegeError("x"), asyncpg.UndefinedTableError("x"), TimeoutError(),
                     asyncpg.ReadOnlySQLTransactionError("x"), asyncpg.InterfaceError("x")):  # fmt: skip
        assert isinstance(translate(reported), Unavailable), reported
    assert isinstance(translate(asyncpg.ClientConfigurationError("x")), OperatorError)
    assert is_gone(asyncpg.ReadOnlySQLTransactionError("x")) and is_gone(ConnectionResetError())
    assert not is_gone(asyncpg.QueryCanceledError("x")) and not is_gone(asyncpg.DeadlockDetectedError("x"))


def test_database_of_a_newer_version_is_refused_with_a_clear_message(place: StorePlace) -> None:
    place.use(lambda store: store.database.ping())
    place.by_hand(f"UPDATE petstore_staging.format SET version = {NEWEST_SCHEMA + 1}")
    with pytest.raises(OperatorError, match=r"newer Petstore.*upgrade"):
        place.use(lambda store: store.database.ping())


def test_missing_rights_are_reported_with_what_to_do(place: StorePlace) -> None:
    assert place.url is not None
    place.by_hand("DROP ROLE IF EXISTS unprivileged")
    place.by_hand("CREATE ROLE unprivileged LOGIN")
    with pytest.raises(OperatorError, match="GRANT CREATE"):
        StorePlace(place.data, place.url.replace("pets@", "unprivileged@")).use(lambda store: store.database.ping())


@pytest.mark.parametrize("url", ["mysql://x/y", "postgres", "sqlite:///x"])
def test_unknown_scheme_is_refused_in_one_line(tmp_path: Path, url: str) -> None:
    with pytest.raises(OperatorError, match="--store"):
        StorePlace(tmp_path, url).use(lambda store: store.database.ping())


# PgBouncer


class PgBouncer(Process):
    """PgBouncer in transaction mode, with fewer server connections than clients."""

    def __init__(self, postgres: Postgres) -> None:
        super().__init__("pgbouncer")
        self._program = program("pgbouncer")
        self._postgres = postgres
        (self.directory / "users").write_text('"pets" ""\n')
        (self.directory / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={postgres.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self.directory / 'users'}\npool_mode = transaction\n"
            "default_pool_size = 2\nmax_client_conn = 100\n"
        )
        if os.geteuid() == 0:
            shutil.chown(self.directory, ANONYMOUS)
            for file in self.directory.iterdir():
                shutil.chown(file, ANONYMOUS)

    def command(self) -> list[str]:
        return [self._program, str(self.directory / "pgbouncer.ini")]

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
        await store.keys.create(key, mint("live"), BY)
        added = await asyncio.gather(*(store.pets.add(NewPet(f"Pet {i}", i), NOW) for i in range(300)))
        found = await asyncio.gather(*(store.pets.get(each.pet.id) for each in added))
        assert [pet and pet.name for pet in found] == [f"Pet {i}" for i in range(300)]
        await store.pets.set_status([added[0].pet.id], "sold", BY)
        await store.usage.add([OperationUsage(key.id, 0, "admitted", 1, "listPets")], {key.id: NOW})
        again = [await store.pets.add(NewPet("Rex", 1), NOW, IdempotencyKey(key.id, "t", b"")) for _ in range(2)]
        assert again[0].pet == again[1].pet
        await imported(store, *[NewPet("x", 1)] * 100)
        assert sum((await store.pets.count()).values()) == 401

    StorePlace(tmp_path, through).use(work, policy=StorePolicy(pool_size=20, pgbouncer=True, bounds=PATIENT))


def test_an_update_waits_for_the_row_and_then_compares_it(place: StorePlace) -> None:
    """Another transaction has changed the row but not committed yet."""

    async def work(store: Store) -> None:
        key = new_key("live", "free", now=NOW, name="Ada")
        await store.keys.create(key, "secret", BY)
        other = await asyncpg.connect(place.url)
        transaction = other.transaction()
        await transaction.start()
        await other.execute("UPDATE petstore_live.keys SET name = 'Grace', scopes = 'read' WHERE id = $1", key.id)
        renamed = asyncio.create_task(store.keys.update(key.id, KeyChanges(name="Bob"), BY, key))
        upgraded = asyncio.create_task(store.keys.update(key.id, KeyChanges(plan="pro"), BY, key))
        async with asyncio.timeout(30):
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while await other.fetchval(waiting) < 2:
                await asyncio.sleep(0.01)  # polls until both updates wait
        await transaction.commit()
        await other.close()
        with pytest.raises(Conflict, match="name"):
            await renamed
        found = await upgraded
        assert (found.name, found.scopes, found.plan) == ("Grace", ("read",), "pro")
        assert await store.keys.get(key.id) == found

    place.use(work)
