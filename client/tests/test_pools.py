"""Pools of workers on one client against a real server with narrow limits: all animals, no ban, nothing too early."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from fakes import Kind
from hurried import HurriedTime
from petstore.plans import Limits
from petstore_client import AsyncPetstore, Petstore, RateLimited, Try
from tests.servers import Key, Server, serving


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, whose clock may be moved."""
    with serving(tmp_path / "data") as server:
        yield server


class Event(NamedTuple):
    moment: float
    status: int | None
    """None for a request that is being sent."""
    retry_after: float = 0.0


class Recorder(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """The network, with everything that was sent and answered, in order."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self._clock = clock
        self._lock = threading.Lock()
        self._sync = httpx.HTTPTransport(verify=False)
        self._async = httpx.AsyncHTTPTransport(verify=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._sending()
        return self._answered(self._sync.handle_request(request))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._sending()
        return self._answered(await self._async.handle_async_request(request))

    def close(self) -> None:
        self._sync.close()

    async def aclose(self) -> None:
        await self._async.aclose()

    def _sending(self) -> None:
        with self._lock:
            self.events.append(Event(self._clock(), None))

    def _answered(self, response: httpx.Response) -> httpx.Response:
        with self._lock:
            seconds = float(response.headers.get("Retry-After", 0))
            self.events.append(Event(self._clock(), response.status_code, seconds))
        return response

    def sent_too_early(self) -> list[Event]:
        """Requests that were sent although an answer that was there already forbade it."""
        early, forbidden_until = [], 0.0
        for event in self.events:
            if event.status == 429:
                forbidden_until = max(forbidden_until, event.moment + event.retry_after)
            elif event.status is None and event.moment < forbidden_until:
                early.append(event)
        return early


class Result(NamedTuple):
    recorder: Recorder
    tries: list[Try]
    errors: list[Exception]


def add_animals(kind: Kind, server: Server, key: Key, workers: int, each: int, **options: Any) -> Result:
    """Each worker adds its animals one after the other, through one client, and writes no loop of its own."""
    hurried = HurriedTime(server)
    result = Result(Recorder(hurried.clock), [], [])
    options |= {"base_url": server.url(""), "transport": result.recorder, "clock": hurried.clock}
    options |= {"on_try": result.tries.append}

    def in_threads() -> None:
        with Petstore(key.secret, sleep=hurried.sleep, **options) as client:

            def work(worker: int) -> None:
                for number in range(each):
                    client.create_pet(f"{worker}-{number}", worker)

            with ThreadPoolExecutor(workers) as pool:
                futures = [pool.submit(work, worker) for worker in range(workers)]
            result.errors.extend(error for future in futures if (error := future.exception()) is not None)  # type: ignore[misc]  # only Exceptions here

    async def in_tasks() -> None:
        async def sleep(seconds: float) -> None:
            await asyncio.to_thread(hurried.sleep, seconds)

        async with AsyncPetstore(key.secret, sleep=sleep, **options) as client:

            async def work(worker: int) -> None:
                for number in range(each):
                    await client.create_pet(f"{worker}-{number}", worker)

            outcomes = await asyncio.gather(*map(work, range(workers)), return_exceptions=True)
            result.errors.extend(outcome for outcome in outcomes if isinstance(outcome, Exception))

    if kind == "threads":
        in_threads()
    else:
        asyncio.run(in_tasks())
    return result


def names(server: Server) -> Counter[str]:
    with Petstore(server.key().secret, base_url=server.url("")) as client:
        return Counter(pet.name for pet in client.list_pets())


def test_8_workers_add_200_animals_with_a_free_key_and_no_option(kind: Kind, own_server: Server) -> None:
    result = add_animals(kind, own_server, own_server.key("free"), workers=8, each=25)
    assert result.errors == []
    assert names(own_server) == Counter({f"{worker}-{number}": 1 for worker in range(8) for number in range(25)})
    codes = Counter(done.code for done in result.tries)
    assert codes["key_banned"] == 0
    assert codes[None] == 200
    assert codes["rate_limit_exceeded"] <= 12, "at each of three turns of the minute about one asked in vain"
    assert result.recorder.sent_too_early() == []


def test_a_pool_far_larger_than_the_limit_is_not_banned_either(kind: Kind, own_server: Server) -> None:
    """Seven refusals in one window would be a ban: a pool of 40 that learnt one by one would have it at once."""
    key = own_server.key("enterprise", Limits(6, 1_000_000))
    result = add_animals(kind, own_server, key, workers=40, each=1, max_wait=3600.0)
    assert result.errors == []
    assert len(names(own_server)) == 40
    assert "key_banned" not in {done.code for done in result.tries}
    assert result.recorder.sent_too_early() == []


def test_when_the_day_is_used_up_everyone_is_told_at_once_and_nobody_asks_again(kind: Kind, own_server: Server) -> None:
    result = add_animals(kind, own_server, own_server.key("enterprise", Limits(100, 20)), workers=8, each=21)
    assert len(result.errors) == 8
    assert {type(error) for error in result.errors} == {RateLimited}
    assert len(names(own_server)) == 20
    refusals = [done for done in result.tries if done.code == "rate_limit_exceeded"]
    assert 1 <= len(refusals) <= 8
    for error in result.errors:
        assert isinstance(error, RateLimited)
        assert error.limit == 20
        assert error.retry_after is not None
        assert 86_000 < error.retry_after <= 86_400
