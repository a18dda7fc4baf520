"""Opening the store on PostgreSQL: several hosts, slow migrations, silent servers, and unusable databases."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.backends import Postgres
from harness.stores import NOW, PATIENT, StorePlace, nobody_is_connected, postgres_pool
from petstore.backends import Backends
from petstore.errors import OperatorError, Unavailable
from petstore.pets import NewPet
from petstore.settings import Settings
from petstore.store import Store, StorePolicy
from petstore.store.database import Bounds
from petstore.store.postgres import migrations
from petstore.store.postgres.pool import PostgresPool, each_host, pool_options
from petstore.timeouts import Timeouts


@contextlib.contextmanager
def deaf_host() -> Iterator[socket.socket]:
    """Yields a listening socket. Clients can connect to it but get no response."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.setblocking(False)
        yield deaf


def attempts(deaf: socket.socket) -> int:
    """Returns how many clients have connected since the last call."""
    found = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            deaf.accept()[0].close()
            found += 1
    return found


def with_first_host(deaf: socket.socket, url: str) -> str:
    return url.replace("127.0.0.1:", f"127.0.0.1:{deaf.getsockname()[1]},127.0.0.1:", 1)


@pytest.mark.parametrize(
    ("url", "writable"),
    [("postgresql://a,b/x", True), ("postgresql://a/x", False), ("postgresql://a/x?options=-c,y", False)],
)
def test_of_several_hosts_the_one_that_takes_writes_is_used(url: str, *, writable: bool) -> None:
    options = pool_options(len(each_host(url)), StorePolicy(1))
    assert (options.get("target_session_attrs") == "read-write") == writable


def test_host_that_swallows_packets_leaves_time_for_the_next(postgres: Postgres, tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        for _ in range(3):
            await store.database.ping()

    with deaf_host() as deaf:
        StorePlace(tmp_path, with_first_host(deaf, postgres.url())).use(work)


def test_host_that_answered_is_asked_first_from_then_on(postgres: Postgres, tmp_path: Path) -> None:
    async def work() -> None:
        # The timeout is longer than usual, so that the test passes even if the machine stalls.
        limits = Bounds(timeouts=Timeouts(8))
        async with postgres_pool(StorePlace(tmp_path, with_first_host(deaf, postgres.url())), 3, limits) as pool:
            await pool.run(lambda connection: connection.fetchval("SELECT 1"))
            assert attempts(deaf) == 1
            busy = (pool.run(lambda connection: connection.fetchval("SELECT pg_sleep(0.3)")) for _ in range(3))
            await asyncio.gather(*busy)  # each needs a separate connection
            assert attempts(deaf) == 0

    with deaf_host() as deaf:
        asyncio.run(work())


def test_options_that_make_no_sense_are_an_operators_error(tmp_path: Path) -> None:
    place = StorePlace(tmp_path, "postgresql://127.0.0.1:1/x?sslmode=nonsense")
    with pytest.raises(OperatorError, match="--store"):
        place.use(lambda store: store.database.ping())


def test_schema_that_cannot_be_used_leaves_no_connection_open(place: StorePlace) -> None:
    place.use(lambda store: store.database.ping())
    place.by_hand("UPDATE petstore_live.format SET version = 1000")

    async def work() -> None:
        with pytest.raises(OperatorError, match="newer"):
            async with place.open():
                pass
        await nobody_is_connected(place)

    asyncio.run(work())


def test_requests_that_meet_a_newer_schema_get_an_outage(place: StorePlace) -> None:
    """A worker opens its pool on the first request. By then, a newer node might have migrated the data."""
    place.use(lambda store: store.database.ping())
    place.by_hand("UPDATE petstore_live.format SET version = 1000")

    async def work() -> None:
        async with Backends(Settings(data=place.data, store=place.url), serving=True) as backends:
            for call in (
                backends.stores["live"].database.ping(),
                backends.stores["live"].pets.add(NewPet("Rex", 1), NOW),
            ):
                with pytest.raises(Unavailable, match="newer"):
                    await call

    asyncio.run(work())


def test_migration_may_take_longer_than_a_request_waits(place: StorePlace) -> None:
    *earlier, last = migrations.KNOWN
    slow = last._replace(sql=f"{last.sql}; SELECT pg_sleep(1)")

    async def work() -> None:
        assert place.url is not None
        policy = StorePolicy(1, bounds=PATIENT)
        pool = PostgresPool(place.url, ["petstore_live"], policy, [*earlier, slow])
        with pytest.raises(Unavailable):
            await pool.run(lambda connection: connection.fetchval("SELECT 1"), 0.2)
        assert await pool.run(lambda connection: connection.fetchval("SELECT 1"), 20) == 1
        await pool.close()

    asyncio.run(work())


def test_first_connection_that_goes_silent_does_not_keep_the_store_from_opening(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.use(lambda store: store.database.ping())
    check, silences = migrations.check_encoding, iter([60])

    async def checked(connection: Any) -> None:
        await connection.fetchval(f"SELECT pg_sleep({next(silences, 0)})")
        await check(connection)

    monkeypatch.setattr(migrations, "check_encoding", checked)

    async def work() -> None:
        async with postgres_pool(place, bounds=Bounds(), pgbouncer=True) as pool:  # disables server timeouts
            with pytest.raises(Unavailable):
                await pool.run(lambda connection: connection.fetchval("SELECT 1"))
            assert await pool.run(lambda connection: connection.fetchval("SELECT 1"), 20) == 1

    asyncio.run(work())


def test_database_whose_encoding_cannot_hold_all_names_is_refused(postgres: Postgres, tmp_path: Path) -> None:
    postgres.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(OperatorError, match="LATIN1"):
        StorePlace(tmp_path, postgres.url_of("latin")).use(lambda store: store.database.ping(), policy=StorePolicy())
    postgres.execute("DROP DATABASE latin")


def test_connection_settings_reach_the_server(place: StorePlace) -> None:
    async def work() -> list[str]:
        async with postgres_pool(place, bounds=Bounds()) as pool:
            limits = ("statement_timeout", "idle_in_transaction_session_timeout", "application_name")
            return [await pool.run(lambda c, limit=limit: c.fetchval(f"SHOW {limit}"), 20) for limit in limits]  # type: ignore[misc]  # binds the loop variable

    assert asyncio.run(work()) == ["1200ms", "5s", migrations.APPLICATION_NAME]


def test_guide_asks_operators_of_pgbouncer_for_the_same_timeouts() -> None:
    guide = (Path(__file__).parents[2] / "docs/reference/cluster.md").read_text()
    bounds = Bounds()
    assert f"SET statement_timeout = '{bounds.timeouts.step * 1000:.0f}ms'" in guide
    assert f"SET idle_in_transaction_session_timeout = '{bounds.idle_transaction_timeout:.0f}s'" in guide


def test_pool_that_is_closed_first_finishes_its_work(place: StorePlace) -> None:
    async def work() -> None:
        async with postgres_pool(place) as pool:
            reading = asyncio.create_task(
                pool.run(lambda connection: connection.fetchval("SELECT 7 FROM pg_sleep(0.2)"))
            )
            await asyncio.sleep(0)
        assert await reading == 7
        with pytest.raises(Unavailable, match="closed"):
            await pool.run(lambda connection: connection.fetchval("SELECT 1"))
        await nobody_is_connected(place)

    asyncio.run(work())
