"""Unexpected exceptions reach their callers unchanged, are logged once with a traceback, and are never outages."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from harness.stores import NOW, PATIENT, StorePlace, WatchedConnection, names, opened, sqlite_store
from petstore.changes import Change
from petstore.errors import OperatorError
from petstore.observability.metrics import STORE_OUTAGES
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store import Store, StorePolicy, open_stores
from petstore.store.postgres.pool import PostgresPool


async def announce(_: Collection[Change]) -> None: ...


@pytest.fixture
def no_outage() -> Iterator[None]:
    before = STORE_OUTAGES.cells.get(("live", "write"), 0)
    yield
    assert STORE_OUTAGES.cells["live", "write"] == before


def traces(caplog: pytest.LogCaptureFixture) -> list[BaseException | None]:
    """Returns the exceptions that were logged with a traceback."""
    return [record.exc_info[1] for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("idempotency_key", [None, IdempotencyKey("key_a", "token", b"")], ids=["plain", "idempotent"])
def test_value_that_cannot_be_stored_is_raised_and_the_writer_continues(
    store_at: StorePlace, no_outage: None, caplog: pytest.LogCaptureFixture, idempotency_key: IdempotencyKey | None
) -> None:
    not_a_name: Any = object()

    async def work(store: Store) -> None:
        with pytest.raises(Exception) as raised:  # raised by the driver or msgspec
            await asyncio.wait_for(store.pets.add(NewPet(not_a_name, 1), NOW, idempotency_key), 10)
        assert not isinstance(raised.value, OperatorError | TimeoutError)
        assert (await store.pets.add(NewPet("Rex", 1), NOW, idempotency_key)).pet.name == "Rex"
        assert await names(store) == ["Rex"]

    store_at.use(work)
    assert traces(caplog) == []  # the caller logs it with the request id


class Buggy(WatchedConnection):
    """Raises `bug`, if it is set, when animals are inserted."""

    bug: Exception | None = None
    begun, may_end = threading.Event(), threading.Event()

    def before(self, sql: str) -> None:
        if sql.startswith("INSERT INTO pets") and Buggy.bug is not None:
            Buggy.begun.set()
            Buggy.may_end.wait(timeout=10)
            raise Buggy.bug


@pytest.fixture
def bug() -> Any:
    Buggy.bug = ValueError("a bug")
    Buggy.begun.clear()
    Buggy.may_end.set()
    yield Buggy.bug
    Buggy.bug = None


def test_bug_in_the_writers_thread_reaches_every_caller_of_the_batch(
    tmp_path: Path, bug: Exception, no_outage: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path, kind=Buggy) as store:
            adding = (store.pets.add(NewPet(f"Pet {i}", i), NOW) for i in range(3))
            assert await asyncio.gather(*adding, return_exceptions=True) == [bug] * 3
            Buggy.bug = None
            assert (await store.pets.add(NewPet("Rex", 1), NOW)).pet.name == "Rex"

    asyncio.run(work())
    assert traces(caplog) == []


def test_bug_whose_callers_have_gone_is_logged_whole_once(
    tmp_path: Path, bug: Exception, no_outage: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path, kind=Buggy) as store:
            Buggy.may_end.clear()
            adding = [asyncio.create_task(store.pets.add(NewPet(f"Pet {i}", i), NOW)) for i in range(3)]
            assert await asyncio.to_thread(Buggy.begun.wait, 10)
            for each in adding:
                each.cancel()
            await asyncio.gather(*adding, return_exceptions=True)
            Buggy.may_end.set()

    with caplog.at_level(logging.ERROR, "petstore"):
        asyncio.run(work())
    assert traces(caplog) == [bug]


def test_bug_on_a_connection_reaches_the_caller_and_the_pool_continues(
    place: StorePlace, no_outage: None, caplog: pytest.LogCaptureFixture
) -> None:
    bug = ValueError("a bug")

    async def broken(connection: Any) -> None:
        await connection.fetchval("SELECT 1")
        raise bug

    async def work() -> None:
        assert place.url is not None
        pool = PostgresPool(place.url, [], StorePolicy(1))
        with pytest.raises(ValueError, match="a bug"):
            await pool.run(broken)
        assert traces(caplog) == []
        assert await pool.run(lambda connection: connection.fetchval("SELECT 2")) == 2
        gone = asyncio.create_task(pool.run(broken))
        await asyncio.sleep(0)
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        await pool.close()

    with caplog.at_level(logging.ERROR, "petstore"):
        asyncio.run(work())
    assert traces(caplog) == [bug]


def test_bug_in_a_batch_on_postgresql_does_not_fail_those_who_wait_behind_it(
    place: StorePlace, no_outage: None
) -> None:
    not_a_name: Any = object()

    async def work(store: Store) -> None:
        await store.database.ping()
        adding = [store.pets.add(NewPet(name, 1), NOW) for name in ("Rex", not_a_name, "Mia", "Bo")]
        rex, bad, mia, bo = await asyncio.gather(*adding, return_exceptions=True)
        assert isinstance(bad, Exception) and not isinstance(bad, TimeoutError)
        assert isinstance(mia, Added) and isinstance(bo, Added)
        assert len(await names(store)) == (3 if isinstance(rex, Added) else 2)

    place.use(work, policy=StorePolicy(bounds=PATIENT._replace(batch=2)))


def test_stores_that_fail_to_open_leave_nothing_open(tmp_path: Path) -> None:
    StorePlace(tmp_path).use(lambda store: store.database.ping())
    with contextlib.closing(apsw.Connection(str(tmp_path / "staging.db"))) as staging:
        staging.pragma("user_version", 1_000)
    threads = threading.active_count()

    async def work() -> None:
        with pytest.raises(OperatorError, match="newer"):
            open_stores(None, tmp_path, StorePolicy(), lambda _: announce)
        assert not opened(tmp_path)

    asyncio.run(work())
    assert threading.active_count() == threads
