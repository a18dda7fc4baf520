"""Closing a client ends every wait. A closed client and a second event loop are errors that name the reason."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from fakes import Client, Kind, Service, created, error, refusal
from petstore_client import AsyncPetstore, ClientClosed, Pet, Petstore, PetstoreError
from staged import Stage, staged


def test_a_closed_client_sends_nothing(kind: Kind) -> None:
    service = Service()
    with Client(kind, service) as client:
        assert not client.inner.is_closed
        client.close()
        assert client.inner.is_closed
        with pytest.raises(ClientClosed, match=r"the client is closed \(client_closed\)"):
            client.create_pet("Rex", 7)
        with pytest.raises(PetstoreError):
            next(client.list_pets())
    assert service.requests == []


def test_closing_a_copy_closes_the_client(kind: Kind) -> None:
    service = Service(created())
    with Client(kind, service) as client:
        copies = [client.inner.with_options(strict=True), client.inner.with_options(api_key="pets_live_other")]
        client.finish(copies[1].create_pet("Rex", 7))
        client.close()
        for copy in (client.inner, *copies):
            assert copy.is_closed
            with pytest.raises(ClientClosed):
                client.finish(copy.create_pet("Rex", 7))


@staged(max_connections=1)
async def test_aclose_wakes_the_queue(stage: Stage) -> None:
    first, *tasks = await stage.start(*"abc")
    await stage.client.aclose()
    for task in tasks:
        with pytest.raises(ClientClosed):
            await task
    await stage.service.respond_to(0, created())
    assert (await first).name == "Rex", "the transport of the test finishes its request"


@pytest.mark.parametrize(
    "outcome", [refusal(60), error(503, "unavailable", retry_after=60), error(408, "request_timeout", retry_after=60)]
)
def test_close_ends_the_pauses_of_all_threads_at_once(outcome: httpx2.Response) -> None:
    """The pauses are in real time, because the transport does not have its own clock."""
    is_paused = threading.Event()
    transport = httpx2.MockTransport(lambda request: httpx2.Response(outcome.status_code, headers=outcome.headers))
    with ThreadPoolExecutor(4) as pool:
        with Petstore("key", transport=transport, on_wait=lambda wait: is_paused.set()) as client:
            calls = [pool.submit(client.create_pet, "Rex", 7) for _ in range(4)]
            assert is_paused.wait(30)
        for call in calls:
            with pytest.raises(ClientClosed):
                call.result(30)


def test_aclose_ends_the_pauses_of_all_tasks_at_once() -> None:
    async def calls() -> list[Pet | BaseException]:
        is_paused = asyncio.Event()
        transport = httpx2.MockTransport(lambda request: httpx2.Response(429, headers={"Retry-After": "60"}))
        async with AsyncPetstore("key", transport=transport, on_wait=lambda wait: is_paused.set()) as client:
            tasks = [asyncio.create_task(client.create_pet("Rex", 7)) for _ in range(4)]
            await is_paused.wait()
        async with asyncio.timeout(30):
            return await asyncio.gather(*tasks, return_exceptions=True)

    assert {type(each) for each in asyncio.run(calls())} == {ClientClosed}


def test_a_request_in_flight_finishes_when_another_thread_closes_the_client() -> None:
    class Slow(Service):
        def __init__(self) -> None:
            super().__init__(created())
            self.has_arrived, self.may_respond, self.is_closed = threading.Event(), threading.Event(), False

        def respond(self, request: httpx2.Request) -> httpx2.Response:
            self.has_arrived.set()
            assert self.may_respond.wait(30)
            assert not self.is_closed, "closing a socket would not wake a thread that reads from it"
            return super().respond(request)

        def close(self) -> None:
            self.is_closed = True

    service = Slow()
    with ThreadPoolExecutor(1) as pool, service.client() as client:
        call = pool.submit(client.create_pet, "Rex", 7)
        assert service.has_arrived.wait(30)
        client.close()
        assert client.is_closed
        service.may_respond.set()
        assert call.result(30).name == "Rex"
        assert service.is_closed, "the last request closes the connections"


def test_an_http_client_that_the_caller_has_closed_is_a_closed_client() -> None:
    own = httpx2.Client(transport=Service(created()))
    with Petstore("key", http_client=own) as client:
        own.close()
        assert client.is_closed
        with pytest.raises(ClientClosed):
            client.create_pet("Rex", 7)


def test_a_second_event_loop_is_an_error_that_says_what_to_do() -> None:
    client = Service(created()).async_client()
    assert asyncio.run(client.create_pet("Rex", 7)).name == "Rex"
    with pytest.raises(PetstoreError, match="create a client in each event loop") as raised:
        asyncio.run(client.create_pet("Rex", 7))
    assert raised.value.code == "wrong_event_loop"
    asyncio.run(client.aclose())
    assert client.is_closed


def test_a_client_can_be_created_outside_its_event_loop() -> None:
    client = AsyncPetstore("key", transport=Service(created(), created()))

    async def calls() -> None:
        async with client:
            await client.create_pet("Rex", 7)
            await client.create_pet("Rex", 7)

    asyncio.run(calls())
