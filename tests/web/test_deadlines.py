"""The deadline of a request: whatever hangs, the client gets a 503 in time, and work for other requests continues.

Only the tests move the clock of the deadlines. Timeouts of the store and the gate are at least 20 s, so only the
deadline can end a request here.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from harness.in_process import NOW, Clock, Wrapped, request
from harness.servers import Key, Server
from harness.stores import PATIENT, StorePlace, WatchedConnection, names, postgres_pool, sqlite_store
from harness.wire import Response, pipelined
from harness.wire import request as request_bytes
from petstore.audit import Actor
from petstore.changes import Change
from petstore.gate import Gate, GatePolicy, open_gate
from petstore.keys import mint, new_key
from petstore.plans import Limits
from petstore.settings import Settings
from petstore.store import Store, StorePolicy
from petstore.store.sqlite.connection import WriteLock, connect
from petstore.timeouts import CLIENT
from petstore.web.app import App
from petstore.web.deadlines import INTERVAL, Deadlines
from petstore.web.replies import Reply

SEVERAL_LOOKS = 4 * INTERVAL


async def forever(*_: Any, **__: Any) -> None:
    await asyncio.Event().wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)  # polls until the timeout


class Disk(WatchedConnection):
    """Hangs before each commit while `works` is clear."""

    works = threading.Event()
    hanging = threading.Event()

    def before(self, sql: str) -> None:
        if sql == "COMMIT" and not Disk.works.is_set():
            Disk.hanging.set()
            Disk.works.wait(timeout=60)


@pytest.fixture(autouse=True)
def disk() -> Iterator[None]:
    Disk.works.set()
    Disk.hanging.clear()
    yield
    Disk.works.set()


class Running(NamedTuple):
    app: App
    gate: "HangingGate"
    clock: Clock  # for the deadlines
    secret: str

    def ask(self, method: str = "GET", path: str = "/v1/pets", **more: Any) -> "asyncio.Task[Reply]":
        authorization = f"Bearer {self.secret}"
        return asyncio.create_task(self.app.answer(request(path, method=method, authorization=authorization, **more)))

    def create(self, name: str = "Rex") -> "asyncio.Task[Reply]":
        return self.ask("POST", body=f'{{"name":"{name}","categoryId":1}}'.encode(), idempotency_key=name)

    async def is_ended_by_its_deadline(self, asking: "asyncio.Task[Reply]") -> None:
        await asyncio.sleep(0)  # lets the task begin
        self.clock.now += CLIENT.deadline - 2 * INTERVAL - 0.001
        await asyncio.sleep(SEVERAL_LOOKS)
        assert not asking.done()
        self.clock.now += 2 * INTERVAL
        reply = await asyncio.wait_for(asking, 60)
        assert reply.status == 503
        assert {"retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-request-id"} <= {
            line.partition(":")[0] for line in reply.headers.splitlines()
        }


@asynccontextmanager
async def running(store: Store, data: Path) -> AsyncIterator[Running]:
    secret = mint("live")
    key = new_key("live", "enterprise", now=NOW, limits=Limits(10**6, 10**6))
    await store.keys.create(key, secret, Actor("a test", NOW))
    gate: Any = HangingGate(open_gate(None, data, GatePolicy()))
    clock = Clock()
    try:
        stores: Any = {"live": store, "staging": store}
        app = App(Settings(data=data), stores, gate, lambda: NOW, deadlines=Deadlines(CLIENT.deadline, clock))
        running = Running(app, gate, clock, secret)
        assert (await running.ask()).status == 200  # the key is cached now, and the store is open
        yield running
    finally:
        await gate.close()


# What can hang


class HangingGate(Wrapped):
    """A gate that can hang whenever a request needs it."""

    def __init__(self, real: Gate) -> None:
        self.hangs = False
        methods = ("admit", "admit_address", "peek_address")
        super().__init__(real, immediate=False, **{name: self._or_forever(getattr(real, name)) for name in methods})

    def _or_forever(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        return lambda *values: forever() if self.hangs else method(*values)


def test_gate_that_hangs(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path) as store, running(store, tmp_path) as service:
            service.gate.hangs = True
            await service.is_ended_by_its_deadline(service.ask())
            await service.is_ended_by_its_deadline(service.ask(path="/readyz/unknown"))

    asyncio.run(work())


def test_gate_that_hangs_when_an_error_needs_its_headers(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path) as store, running(store, tmp_path) as service:
            service.gate.hangs = True
            rejecting = asyncio.create_task(service.app.reject(431, "192.0.2.9"))
            await asyncio.sleep(0)
            service.clock.now += CLIENT.deadline
            assert (await asyncio.wait_for(rejecting, 60)).status == 431

    asyncio.run(work())


def test_queue_of_a_writer_whose_turn_does_not_come(tmp_path: Path) -> None:
    """Another process holds the file lock that the writer needs before it takes writes from the queue."""

    async def work() -> None:
        async with sqlite_store(tmp_path) as store, running(store, tmp_path) as service:
            with closing(WriteLock(tmp_path / "live.db")) as lock, lock:
                await service.is_ended_by_its_deadline(service.create("late"))
            assert (await service.create("Rex")).status == 201
            assert await names(store) == ["Rex"]  # the writer skips a write whose caller has given up

    asyncio.run(work())


def test_lock_of_another_process(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path) as store, running(store, tmp_path) as service:
            with closing(connect(tmp_path / "live.db")) as other:
                other.execute("BEGIN IMMEDIATE")
                await service.is_ended_by_its_deadline(service.create("late"))
                other.execute("ROLLBACK")
            assert (await service.create("Rex")).status == 201
            assert await names(store) == ["Rex"]

    asyncio.run(work())


def test_commit_that_hangs_is_finished_later(tmp_path: Path) -> None:
    """A retry with the same idempotency key therefore gets the animal."""
    changes: list[Change] = []

    async def work() -> None:
        async with (
            sqlite_store(tmp_path, kind=Disk, changes=changes) as store,
            running(store, tmp_path) as service,
        ):
            changes.clear()
            Disk.works.clear()
            creating = service.create()
            await until(Disk.hanging.is_set)
            await service.is_ended_by_its_deadline(creating)
            assert changes == []
            Disk.works.set()
            again = await service.create()
            assert again.status == 201 and "idempotent-replayed: true" in again.headers
            assert await names(store) == ["Rex"] and changes == ["added"]

    asyncio.run(work())


def test_announcement_that_hangs_is_finished_later(tmp_path: Path) -> None:
    hanging, works = asyncio.Event(), asyncio.Event()
    announced: list[Change] = []

    async def announce(changes: Collection[Change]) -> None:
        if "added" in changes:
            hanging.set()
            await works.wait()
        announced.extend(changes)

    async def work() -> None:
        async with sqlite_store(tmp_path, announce=announce) as store, running(store, tmp_path) as service:
            announced.clear()
            creating = service.create()
            await hanging.wait()
            await service.is_ended_by_its_deadline(creating)
            works.set()
            await until(lambda: announced == ["added"])

    asyncio.run(work())


def test_connection_that_is_not_free(place: StorePlace) -> None:
    policy = StorePolicy(pool_size=1, bounds=PATIENT)

    async def work() -> None:
        async with place.open(policy=policy) as store, running(store, place.data) as service:
            holding = asyncio.create_task(store.database.read("SELECT pg_sleep(60)"))
            await asyncio.sleep(0.1)  # until the query has reached the server
            await service.is_ended_by_its_deadline(service.ask(path="/v1/pets/1"))
            await service.is_ended_by_its_deadline(service.create())
            holding.cancel()
            async with postgres_pool(place) as other:
                sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)'"
                await other.run(lambda connection: connection.fetch(sql + " AND pid <> pg_backend_pid()"))

    asyncio.run(work())


@asynccontextmanager
async def table_locked(place: StorePlace) -> AsyncIterator[None]:
    other = await asyncpg.connect(place.url)
    try:
        await other.execute("BEGIN; LOCK TABLE petstore_live.pets IN ACCESS EXCLUSIVE MODE")
        yield
    finally:
        await other.close()


@pytest.mark.parametrize(("path", "query"), [("/v1/pets", "limit=7"), ("/v1/pets/1", "")])
def test_statement_that_waits_for_a_lock(place: StorePlace, path: str, query: str) -> None:
    async def work() -> None:
        async with place.open() as store, running(store, place.data) as service:
            assert (await service.create()).status == 201
            async with table_locked(place):
                await service.is_ended_by_its_deadline(service.ask(path=path, query=query))
            assert (await service.ask(path=path, query=query)).status == 200

    asyncio.run(work())


def test_batch_of_others_continues(place: StorePlace) -> None:
    async def work() -> None:
        async with place.open() as store, running(store, place.data) as service:
            async with table_locked(place):
                early = service.create("early")
                await asyncio.sleep(0.1)  # its statement waits for the lock
                await service.is_ended_by_its_deadline(early)
                later = service.create("later")
            assert (await later).status == 201
            assert await names(store) == ["early", "later"]
            assert "idempotent-replayed: true" in (await service.create("early")).headers

    asyncio.run(work())


# In a running service, with the real clock


def test_create_behind_somebody_elses_lock_is_503_within_two_seconds(fresh: Server) -> None:
    key = fresh.key()
    with fresh.writes_held_up():
        (answer,) = timed_answers(fresh, key)
    assert answer.status == 503 and answer.headers["retry-after"] == "1"
    (answer,) = timed_answers(fresh, key)
    assert answer.status == 201


def timed_answers(server: Server, key: Key) -> list[Response]:
    body = b'{"name":"Rex","categoryId":1}'
    began = time.monotonic()
    answers = pipelined(server.port, [request_bytes("POST", "/v1/pets", key.headers, body, close=True)])
    assert time.monotonic() - began < CLIENT.deadline
    return answers


# The deadline itself


def test_deadline_begins_again_after_what_is_up_to_the_client() -> None:
    async def work() -> None:
        clock = Clock()
        deadlines = Deadlines(CLIENT.deadline, clock)
        slow_client = asyncio.Event()

        async def respond() -> float:
            task = deadlines.begin()
            await deadlines.pause(slow_client.wait())
            deadline = deadlines.current()
            deadlines.end(task)
            return deadline

        responding = asyncio.create_task(respond())
        await asyncio.sleep(SEVERAL_LOOKS)
        clock.now += 10
        await asyncio.sleep(SEVERAL_LOOKS)
        assert not responding.done()
        slow_client.set()
        assert await responding == NOW + 10 + CLIENT.deadline

    asyncio.run(work())


def test_request_that_is_cancelled_by_somebody_else_has_no_response(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path) as store, running(store, tmp_path) as service:
            service.gate.hangs = True
            asking = asyncio.create_task(service.app.answer(request()))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(work())


def test_task_answers_further_requests_after_a_deadline(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path) as store, running(store, tmp_path) as service:

            async def connection() -> list[int]:
                statuses = []
                with closing(WriteLock(tmp_path / "live.db")) as lock, lock:
                    fields: dict[str, Any] = {"authorization": f"Bearer {service.secret}"}
                    body = b'{"name":"Rex","categoryId":1}'
                    statuses.append((await service.app.answer(request(method="POST", body=body, **fields))).status)
                statuses.append((await service.app.answer(request(**fields))).status)
                async with asyncio.timeout(60):  # works only if the task is not being cancelled
                    statuses.append((await service.app.answer(request(**fields))).status)
                return statuses

            answering = asyncio.create_task(connection())
            await asyncio.sleep(SEVERAL_LOOKS)
            service.clock.now += CLIENT.deadline
            assert await asyncio.wait_for(answering, 60) == [503, 200, 200]
            assert answering.cancelling() == 0

    asyncio.run(work())
