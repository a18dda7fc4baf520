"""Opening and closing the store on PostgreSQL: several hosts, slow migrations, servers that go silent."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from petstore.errors import OperatorError, Unavailable
from petstore.pets import NewPet
from petstore.service import Backends
from petstore.settings import Settings
from petstore.store import Store, StorePolicy
from petstore.store.postgres import PostgresStore
from petstore.store.postgres import pool as pool_module
from tests.backends import Postgres
from tests.places import StorePlace
from tests.test_postgres_pool import nobody_is_connected
from tests.test_store import NOW


@pytest.mark.parametrize(
    ("url", "writable"),
    [("postgresql://a,b/x", True), ("postgresql://a/x", False), ("postgresql://a/x?options=-c,y", False)],
)
def test_of_several_hosts_the_one_that_takes_writes_is_wanted(url: str, *, writable: bool) -> None:
    pool = pool_module.PostgresPool(url, size=1, pgbouncer=False, schemas=[])
    assert (pool._options().get("target_session_attrs") == "read-write") == writable


def test_a_host_that_swallows_packets_leaves_time_for_the_next(postgres: Postgres, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # nobody accepts
        url = postgres.url().replace("127.0.0.1:", f"127.0.0.1:{deaf.getsockname()[1]},127.0.0.1:", 1)
        assert "," in url

        async def work(store: Store) -> None:
            for _ in range(3):
                await store.ping()

        StorePlace(tmp_path, url).use(work)


def test_connections_that_are_made_at_the_same_time_all_find_the_host_that_answers(postgres: Postgres) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # nobody accepts
        url = f"postgresql://pets@127.0.0.1:{deaf.getsockname()[1]},127.0.0.1:{postgres.port}/postgres"

        async def work() -> None:
            pool = pool_module.PostgresPool(url, size=2, pgbouncer=False, schemas=[])
            first = asyncio.create_task(pool._connect(""))
            await asyncio.sleep(0.1)  # the first finds out while the second is at it
            for connection in await asyncio.gather(first, pool._connect("")):
                await connection.close()

        asyncio.run(work())


def test_the_host_that_answered_is_asked_first_from_then_on(postgres: Postgres) -> None:
    def tried() -> int:
        found = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                deaf.accept()[0].close()
                found += 1
        return found

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.setblocking(False)
        url = f"postgresql://pets@127.0.0.1:{deaf.getsockname()[1]},127.0.0.1:{postgres.port}/postgres"

        async def work() -> list[int]:
            pool = pool_module.PostgresPool(url, size=2, pgbouncer=False, schemas=[])
            counts = []
            for _ in range(3):
                await (await pool._connect("")).close()
                counts.append(tried())
            return counts

        assert asyncio.run(work()) == [1, 0, 0]


def test_options_that_make_no_sense_are_the_operators_to_mend(tmp_path: Path) -> None:
    place = StorePlace(tmp_path, "postgresql://127.0.0.1:1/x?sslmode=nonsense")
    with pytest.raises(OperatorError, match="--store"):
        place.use(lambda store: store.ping())


def test_a_schema_that_cannot_be_used_leaves_no_connection_open(postgres: Postgres, place: StorePlace) -> None:
    place.use(lambda store: store.ping())
    postgres.execute("INSERT INTO petstore_live.migrations VALUES (1000)", place.url)

    async def work() -> None:
        other = await asyncpg.connect(place.url)
        store = place.open()
        with pytest.raises(OperatorError, match="newer"):
            await store.ping()
        await nobody_is_connected(other)
        await other.close()
        await store.close()

    asyncio.run(work())


def test_requests_that_meet_a_newer_schema_are_told_of_an_outage(postgres: Postgres, place: StorePlace) -> None:
    """A worker opens its pool when it is first asked: by then a node of the next version may have been here."""
    place.use(lambda store: store.ping())
    postgres.execute("INSERT INTO petstore_live.migrations VALUES (1000)", place.url)

    async def work() -> None:
        async with Backends(Settings(data=place.data, store=place.url), serving=True) as backends:
            for call in (backends.stores["live"].ping(), backends.stores["live"].add(NewPet("Rex", 1), NOW)):
                with pytest.raises(Unavailable, match="newer"):
                    await call

    asyncio.run(work())


def test_a_migration_may_take_longer_than_a_request_waits(
    place: StorePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "9999_slow.sql"
    slow.write_text("SELECT pg_sleep(0.6)")
    monkeypatch.setattr(pool_module, "MIGRATIONS", [*pool_module.MIGRATIONS, slow])

    async def work(store: Store) -> None:
        assert isinstance(store, PostgresStore)
        with pytest.raises(Unavailable):
            await store._pool.run(lambda connection: connection.fetchval("SELECT 1"), 0.2)
        assert await store._pool.run(lambda connection: connection.fetchval("SELECT 1"), 5) == 1

    place.use(work)


def test_a_first_connection_that_goes_silent_does_not_keep_the_store_from_opening(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.use(lambda store: store.ping())
    check, looks = pool_module._check_encoding, iter(["silence"])

    async def checked(connection: Any) -> None:
        if next(looks, None):
            await connection.fetchval("SELECT pg_sleep(60)")
        await check(connection)

    monkeypatch.setattr(pool_module, "_check_encoding", checked)

    async def work(store: Store) -> None:
        with pytest.raises(Unavailable):
            await store.ping()
        await store.ping()

    place.use(work, policy=StorePolicy(pgbouncer=True))  # no time limit on the server


def test_a_database_that_has_no_room_for_all_names_is_refused(postgres: Postgres, tmp_path: Path) -> None:
    postgres.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(OperatorError, match="LATIN1"):
        StorePlace(tmp_path, postgres.url_of("latin")).use(lambda store: store.ping())
    postgres.execute("DROP DATABASE latin")
