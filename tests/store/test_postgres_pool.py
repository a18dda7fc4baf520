"""The connections to PostgreSQL: how long callers wait for one, which ones survive a fault, and how they are closed."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from harness.backends import Postgres, running
from harness.stores import NOW, PATIENT, StorePlace, names, nobody_is_connected, postgres_pool
from petstore.errors import Unavailable
from petstore.observability import health as health_module
from petstore.observability.health import Health
from petstore.pets import IdempotencyKey, NewPet
from petstore.store import Store, StorePolicy
from petstore.store.database import Bounds
from petstore.store.postgres.batched_creates import watched
from petstore.store.postgres.migrations import APPLICATION_NAME
from petstore.store.postgres.pool import PostgresPool, long_transaction, terminate_at
from petstore.timeouts import Timeouts

ONE = StorePolicy(pool_size=1)


@contextlib.asynccontextmanager
async def table_locked(place: StorePlace) -> AsyncIterator[None]:
    """Locks the table of animals exclusively from another connection."""
    other = await asyncpg.connect(place.url)
    await other.execute("BEGIN; LOCK TABLE petstore_live.pets IN ACCESS EXCLUSIVE MODE")
    try:
        yield
    finally:
        await other.close()


# Waiting


def test_nobody_waits_longer_for_a_connection_than_the_timeout(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with table_locked(place):
            began = time.monotonic()
            outcomes = await asyncio.gather(
                *(store.pets.get(number) for number in range(20)),
                store.pets.add(NewPet("Rex", 1), NOW),
                return_exceptions=True,
            )
            assert all(isinstance(outcome, Unavailable) for outcome in outcomes), outcomes
            assert time.monotonic() - began < 10  # 1.5 s plus a margin for a busy machine
        assert (await store.pets.add(NewPet("Rex", 1), NOW)).pet.name == "Rex"

    place.use(work, policy=ONE)


def test_an_answer_that_comes_with_the_deadline_is_no_bug(postgres: Postgres) -> None:
    """Stalls the event loop, so that asyncpg receives a reply just before its connection is terminated."""

    async def work() -> None:
        connection = await asyncpg.connect(postgres.url())
        with pytest.raises(TimeoutError), terminate_at(asyncio.get_running_loop().time() + 0.05, connection):
            asking = asyncio.ensure_future(connection.fetchval("SELECT 1"))
            await asyncio.sleep(0)
            time.sleep(0.5)
            await asking

    asyncio.run(work())


def test_add_that_waits_behind_a_batch_until_too_little_time_is_left_is_not_added(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with table_locked(place):
            first = asyncio.ensure_future(store.pets.add(NewPet("first", 1), NOW))
            await asyncio.sleep(0.05)  # its batch has begun
            reserve = PATIENT.timeouts.reserve
            late = asyncio.ensure_future(store.pets.add(NewPet("late", 1), NOW, None, time.monotonic() + reserve))
            in_time = asyncio.ensure_future(store.pets.add(NewPet("in time", 1), NOW))
            await asyncio.sleep(0)
        assert [(await each).pet.name for each in (first, in_time)] == ["first", "in time"]
        with pytest.raises(Unavailable, match="in time"):
            await late
        assert await names(store) == ["first", "in time"]

    place.use(work)


def test_add_that_the_server_refuses_is_not_added_when_the_lock_is_free(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        async with table_locked(place):
            for _ in range(5):
                with pytest.raises(Unavailable) as refused:
                    await store.pets.add(NewPet("late", 1), NOW)
                if "QueryCanceled" in str(refused.value):
                    break  # the server times out first unless the machine stalls
            else:
                raise AssertionError(str(refused.value))
        idempotency_key = IdempotencyKey("key_a", "token", bytes(32))
        added = [await store.pets.add(NewPet("Rex", 1), NOW, idempotency_key) for _ in range(2)]
        assert [each.replayed for each in added] == [False, True]
        assert sum((await store.pets.count()).values()) == 1

    place.use(work, policy=StorePolicy())


def test_queue_for_connections_is_finite(place: StorePlace) -> None:
    async def work() -> None:
        async with postgres_pool(place, bounds=PATIENT._replace(queued_reads=10)) as pool:
            calls = (pool.run(lambda connection: connection.fetchval("SELECT 1")) for _ in range(50))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            refused = [outcome for outcome in outcomes if isinstance(outcome, Unavailable)]
            assert len(refused) == 40 and all("too many" in str(outcome) for outcome in refused)
            assert await pool.run(lambda connection: connection.fetchval("SELECT 1")) == 1

    asyncio.run(work())


def test_caller_that_gives_up_leaves_the_connection_in_order(place: StorePlace) -> None:
    async def work(store: Store) -> None:
        for number in range(1, 31):
            await store.pets.add(NewPet(f"Pet {number}", number), NOW)
        for _ in range(20):
            tasks = [asyncio.create_task(store.pets.get(number)) for number in range(1, 31)]
            await asyncio.sleep(0.001)  # some calls are in flight when they are cancelled
            for task in tasks[::2]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            for number, pet in enumerate(found, 1):
                assert isinstance(pet, asyncio.CancelledError) or getattr(pet, "category_id", None) == number

    place.use(work, policy=StorePolicy(pool_size=2, bounds=PATIENT))


# Faults


async def backends_of(pool: PostgresPool, times: int = 1) -> set[int]:
    """Returns the ids of the server processes that answer this many concurrent requests."""
    sql = f"SELECT pg_backend_pid() FROM pg_sleep({0.2 if times > 1 else 0})"
    return set(await asyncio.gather(*(pool.run(lambda connection: connection.fetchval(sql), 20) for _ in range(times))))


def test_connection_is_kept_after_an_error_and_not_after_a_timeout(place: StorePlace) -> None:
    async def work() -> None:
        async with postgres_pool(place) as pool:
            before = await backends_of(pool)
            with pytest.raises(Unavailable, match="LockNotAvailable"):
                await pool.run(lambda c: c.execute("DO $$ BEGIN RAISE EXCEPTION SQLSTATE '55P03'; END $$"), 20)
            with pytest.raises(asyncpg.DivisionByZeroError):
                await pool.run(lambda connection: connection.fetch("SELECT 1 / 0"), 20)
            assert await backends_of(pool) == before
            with pytest.raises(Unavailable, match="in time"):
                await pool.run(lambda connection: connection.fetch("SELECT pg_sleep(30)"), 0.2)
            assert await backends_of(pool) != before

    asyncio.run(work())


def test_statement_that_takes_too_long_is_ended_unless_it_is_an_operators(place: StorePlace) -> None:
    async def long(connection: Any) -> int:
        async with long_transaction(connection):
            return int(await connection.fetchval("SELECT 7 FROM pg_sleep(0.6)"))

    async def work() -> None:
        async with postgres_pool(place, bounds=Bounds(timeouts=Timeouts(0.5))) as pool:  # statements may take 0.3 s
            before = await backends_of(pool)
            with pytest.raises(Unavailable, match="QueryCanceled"):
                await pool.run(lambda connection: connection.fetchval("SELECT pg_sleep(10)"), 20)
            assert await pool.run(long, 20) == 7
            assert await backends_of(pool) == before  # the connection was kept

    asyncio.run(work())


def test_client_that_is_silent_within_a_transaction_soon_holds_no_lock_unless_it_is_an_operator(
    place: StorePlace,
) -> None:
    locked, served = asyncio.Event(), asyncio.Event()

    async def silent(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute("LOCK TABLE petstore_live.pets")
            locked.set()
            await served.wait()
            await connection.fetchval("SELECT 1")

    async def pausing(connection: Any) -> int:
        async with long_transaction(connection):
            await asyncio.sleep(0.4)  # too long for other clients
            return int(await connection.fetchval("SELECT 1"))

    async def work(store: Store) -> None:
        async with postgres_pool(place, 2, PATIENT._replace(idle_transaction_timeout=0.2)) as pool:
            lost = asyncio.create_task(pool.run(silent, 20))
            await locked.wait()
            assert (await store.pets.add(NewPet("Rex", 1), NOW)).pet.name == "Rex"
            served.set()
            with pytest.raises(Unavailable):
                await lost
            assert await pool.run(pausing, 20) == 1

    place.use(work)


def test_after_one_connection_meets_a_demoted_primary_none_is_kept(place: StorePlace) -> None:
    async def change(connection: Any) -> None:
        await connection.execute("SET default_transaction_read_only = on")
        await connection.execute("CREATE TABLE demoted ()")

    async def work() -> None:
        async with postgres_pool(place, 2) as pool:
            before = await backends_of(pool, 2)
            with pytest.raises(Unavailable, match="ReadOnly"):
                await pool.run(change, 20)
            after = await backends_of(pool, 2)
            assert len(before) == len(after) == 2 and not before & after

    asyncio.run(work())


def test_transaction_ends_although_the_server_hangs(tmp_path: Path) -> None:
    async def work(server: Postgres) -> None:
        async def hang(connection: Any) -> None:
            async with connection.transaction():
                server.hang()
                await connection.fetchval("SELECT 1")

        async with postgres_pool(StorePlace(tmp_path, server.url()), bounds=Bounds()) as pool:
            await pool.run(lambda connection: connection.fetchval("SELECT 1"), 20)
            with pytest.raises(Unavailable):
                await asyncio.wait_for(pool.run(hang), 10)
            server.signal(signal.SIGCONT)
            assert await pool.run(lambda connection: connection.fetchval("SELECT 1"), 20) == 1

    with running(Postgres()) as server:
        asyncio.run(work(server))


def test_outage_begins_with_a_call_that_fails_and_ends_with_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
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


# Closing


def test_closed_store_has_closed_its_connections(place: StorePlace) -> None:
    async def work() -> None:
        async with place.open():
            other = await asyncpg.connect(place.url)
            ours = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{APPLICATION_NAME}'"
            assert await other.fetchval(f"{ours} AND datname = current_database()") == 1
            await other.close()
        await nobody_is_connected(place)

    asyncio.run(work())


def test_store_that_is_closed_first_answers_the_reads_that_wait(place: StorePlace) -> None:
    async def work() -> None:
        async with place.open(policy=StorePolicy(pool_size=1, bounds=PATIENT)) as store:
            reads = [asyncio.create_task(store.pets.count()) for _ in range(5)]  # the pool runs one at a time
            await asyncio.sleep(0)
        assert [counts["available"] for counts in await asyncio.gather(*reads)] == [0] * 5

    asyncio.run(work())
