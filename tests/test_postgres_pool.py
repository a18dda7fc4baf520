"""The connections to PostgreSQL: who waits for one and how long, which are kept after a fault, and what is left."""

import asyncio
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from petstore.errors import Unavailable
from petstore.observability import health as health_module
from petstore.observability.health import Health
from petstore.pets import IdempotencyKey, NewPet
from petstore.store import Store, StorePolicy
from petstore.store.postgres import PostgresStore
from petstore.store.postgres import pool as pool_module
from petstore.store.postgres import writer as writer_module
from petstore.store.postgres.base import watched
from tests.backends import Postgres, running
from tests.places import StorePlace
from tests.test_store import NOW

ONE = StorePolicy(pool_size=1)
OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'petstore' AND datname = current_database()"


def nobody_is_left(store: Store) -> bool:
    """Whether the pool knows of no request that waits for a connection or has one."""
    assert isinstance(store, PostgresStore)
    return store._pool._waiting == 0 and not store._pool._running


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


def test_nobody_waits_longer_behind_a_batch_that_takes_long_than_patience_allows(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "TICK", 0.01)

    async def work(store: Store) -> None:
        assert isinstance(store, PostgresStore)
        await store.ping()
        hog = await asyncpg.connect(place.url)
        await hog.execute("BEGIN; LOCK TABLE petstore_live.pets IN ACCESS EXCLUSIVE MODE")
        slow = store._writer.add(NewPet("slow", 1), NOW, None)
        while store._writer._waiting:
            await asyncio.sleep(0)
        monkeypatch.setattr(writer_module, "PATIENCE", 0.1)
        with pytest.raises(Unavailable, match="in time"):
            await store._writer.add(NewPet("behind it", 1), NOW, None)
        assert not slow.done()
        await hog.close()
        assert (await slow).pet.name == "slow"
        assert sum((await store.count()).values()) == 1

    place.use(work)


def test_whoever_has_waited_too_long_is_refused_before_a_batch_begins(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(store: Store) -> None:
        assert isinstance(store, PostgresStore)
        await store.ping()
        with monkeypatch.context() as hurry:
            hurry.setattr(writer_module, "PATIENCE", -1)
            late = store._writer.add(NewPet("late", 1), NOW, None)
        assert (await store.add(NewPet("Rex", 1), NOW)).pet.name == "Rex"
        with pytest.raises(Unavailable, match="in time"):
            await late
        assert sum((await store.count()).values()) == 1

    place.use(work)


def test_what_is_refused_with_little_time_left_is_not_added_when_the_lock_comes(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PATIENCE", 1.3)  # less than a connection's statements have

    async def work(store: Store) -> None:
        await store.ping()
        hog = await asyncpg.connect(place.url)
        await hog.execute("BEGIN; LOCK TABLE petstore_live.pets IN ACCESS EXCLUSIVE MODE")
        for _ in range(5):
            with pytest.raises(Unavailable) as refused:
                await store.add(NewPet("late", 1), NOW)
            if "QueryCanceled" in str(refused.value):
                break  # the server has given up first, as it does unless the machine stalls
        else:
            raise AssertionError(str(refused.value))
        await hog.close()
        idempotency_key = IdempotencyKey("key_a", "token", bytes(32))
        added = [await store.add(NewPet("Rex", 1), NOW, idempotency_key) for _ in range(2)]
        assert [each.replayed for each in added] == [False, True]
        assert sum((await store.count()).values()) == 1

    place.use(work)


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


async def nobody_is_connected(other: Any) -> None:
    async with asyncio.timeout(10):  # the server notices when it comes to it
        while await other.fetchval(OURS) > 0:
            await asyncio.sleep(0.01)


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


def test_who_falls_silent_within_a_transaction_soon_holds_no_lock_unless_it_is_an_operator(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "IDLE_MILLISECONDS", 200)
    served = asyncio.Event()

    async def silent(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute("LOCK TABLE petstore_live.pets")
            await served.wait()
            await connection.fetchval("SELECT 1")

    async def pausing(connection: Any) -> int:
        async with pool_module.at_leisure(connection):
            await asyncio.sleep(0.4)  # what nobody else may do
            return int(await connection.fetchval("SELECT 1"))

    async def work(store: Store) -> None:
        assert isinstance(store, PostgresStore)
        await store.ping()
        lost = asyncio.create_task(store._pool.run(silent, 10))
        assert (await store.add(NewPet("Rex", 1), NOW)).pet.name == "Rex"
        served.set()
        with pytest.raises(Unavailable):
            await lost
        assert await store._pool.run(pausing) == 1

    place.use(work, policy=StorePolicy(pool_size=2))


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


def test_a_store_that_is_closed_has_let_go_of_its_connections(place: StorePlace) -> None:
    async def work() -> None:
        other = await asyncpg.connect(place.url)
        store = place.open()
        await store.ping()
        assert await other.fetchval(OURS) == 1
        await store.close()
        await nobody_is_connected(other)
        await other.close()

    asyncio.run(work())


def test_a_store_that_is_closed_first_does_what_it_was_asked_to(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BATCH_MAX", 3)

    async def work() -> None:
        store = place.open(policy=ONE)
        await store.ping()
        adds = [asyncio.ensure_future(store.add(NewPet(f"Pet {n}", n), NOW)) for n in range(10)]
        await asyncio.sleep(0)
        await store.close()
        assert [added.pet.category_id for added in await asyncio.gather(*adds)] == list(range(10))

        store = place.open(policy=ONE)
        await store.ping()
        reads = [asyncio.create_task(store.count()) for _ in range(5)]  # one of them at a time
        await asyncio.sleep(0)
        await store.close()
        assert [counts["available"] for counts in await asyncio.gather(*reads)] == [10] * 5

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


def test_a_transaction_ends_although_the_server_hangs(tmp_path: Path) -> None:
    with running(Postgres()) as server:
        StorePlace(tmp_path, server.url()).use(partial(hanging, server))


async def hanging(server: Postgres, store: Store) -> None:
    assert isinstance(store, PostgresStore)
    await store.ping()

    async def work(connection: Any) -> None:
        async with connection.transaction():
            server.hang()
            await connection.fetchval("SELECT 1")

    with pytest.raises(Unavailable):
        await asyncio.wait_for(store._pool.run(work), 10)
    server.signal(signal.SIGCONT)
    await store.ping()


def test_statements_have_a_time_limit_on_the_server_too(place: StorePlace) -> None:
    async def work(store: Store) -> list[str]:
        assert isinstance(store, PostgresStore)
        limits = ("statement_timeout", "idle_in_transaction_session_timeout")
        return [str((await store._rows(f"SHOW {limit}"))[0][0]) for limit in limits]

    assert place.use(work) == ["1350ms", "5s"]
