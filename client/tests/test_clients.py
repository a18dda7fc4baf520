"""Both clients, one suite: what is sent, what comes back, what is raised, and that the key stays secret."""

import asyncio
import copy
import logging
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fakes import KEY, REX, Client, Kind, Service, refusal, response
from petstore_client import (
    LIVE,
    AsyncPetstore,
    ConnectionFailed,
    InvalidRequest,
    Pet,
    PetNotFound,
    PetStatus,
    PetstoreError,
    RateLimit,
    RateLimited,
    TimedOut,
    Unauthorized,
    __version__,
)

LIMITS = {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "59", "X-RateLimit-Reset": "1794614400"}


def page(count: int, following: str = "", first: int = 1) -> httpx.Response:
    pets = [REX | {"id": first + i} for i in range(count)]
    return response(200, pets, {"Link": f'</v1/pets?{following}>; rel="next"'} if following else None)


def test_an_animal_is_added_with_a_key_an_idempotency_key_and_json(kind: Kind) -> None:
    service = Service(response(201, REX, LIMITS))
    with Client(kind, service) as client:
        assert client.create_pet("Rex", 7) == Pet(1, "Rex", 7, PetStatus.AVAILABLE)
        assert client.rate_limit == RateLimit(60, 59, 1794614400)
    (request,) = service.requests
    assert (request.method, str(request.url)) == ("POST", f"{LIVE}/pets")
    assert request.content == b'{"name":"Rex","categoryId":7}'
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.headers["Content-Type"] == request.headers["Accept"] == "application/json"
    assert request.headers["User-Agent"] == f"petstore-client/{__version__}"
    assert len(request.headers["Idempotency-Key"]) == 32


def test_every_try_has_the_same_idempotency_key_and_every_call_its_own(kind: Kind) -> None:
    broken = httpx.ReadError("cut")
    service = Service(broken, refusal(503, "unavailable"), response(201, REX), response(201, REX))
    with Client(kind, service) as client:
        client.create_pet("Rex", 7)
        client.create_pet("Rex", 7)
        assert client.clock.slept == [0.375, 0.75]
    keys = [request.headers["Idempotency-Key"] for request in service.requests]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert len({request.content for request in service.requests}) == 1


def test_an_idempotency_key_can_be_given(kind: Kind) -> None:
    service = Service(response(201, REX))
    with Client(kind, service) as client:
        client.create_pet("Rex", 7, status="sold", idempotency_key="order-17")
    assert service.requests[0].headers["Idempotency-Key"] == "order-17"


@pytest.mark.parametrize("bad", ["", "a b", "a\nb", "é", "x" * 256])
def test_an_idempotency_key_that_no_header_can_carry_is_refused_before_it_is_sent(kind: Kind, bad: str) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError, match="visible ASCII"):
        client.create_pet("Rex", 7, idempotency_key=bad)


def test_a_name_that_is_not_unicode_is_refused_before_it_is_sent(kind: Kind) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError, match="not Unicode"):
        client.create_pet("Rex \udcff", 7)


def test_a_link_that_is_no_address_is_an_error_of_the_client(kind: Kind) -> None:
    service = Service(page(1, "cursor=" + "x" * 70_000))
    with Client(kind, service) as client, pytest.raises(ConnectionFailed, match="URL too long"):
        list(client.list_pets())


def test_a_list_is_lazy_and_follows_the_links(kind: Kind) -> None:
    service = Service(page(2, "cursor=x"), page(1, first=3))
    with Client(kind, service) as client:
        pets = client.list_pets(PetStatus.AVAILABLE, limit=2)
        assert service.requests == []
        assert [next(pets).id, next(pets).id] == [1, 2]
        assert len(service.requests) == 1
        assert [pet.id for pet in pets] == [3]
        assert next(pets, None) is None
    assert [str(request.url) for request in service.requests] == [
        f"{LIVE}/pets?limit=2&status=available",
        f"{LIVE}/pets?cursor=x",
    ]


def test_pages_are_lists_and_none_is_empty(kind: Kind) -> None:
    service = Service(page(2, "cursor=x"), page(0, "cursor=y"), page(1), page(0))
    with Client(kind, service) as client:
        assert [len(some) for some in client.pages()] == [2, 1]
        assert list(client.pages()) == []


def test_a_link_to_elsewhere_does_not_take_the_key_there(kind: Kind) -> None:
    service = Service(
        response(200, [REX], {"Link": '<https://evil.example/v1/pets?cursor=x>; rel="next"'}), response(200, [REX])
    )
    with Client(kind, service) as client:
        assert len(list(client.list_pets())) == 2
    assert {request.url.host for request in service.requests} == {"127.0.0.1"}


def test_an_iterator_goes_on_after_an_error_where_it_was(kind: Kind) -> None:
    service = Service(page(1, "cursor=x"), refusal(429, "rate_limit_exceeded", {"Retry-After": "3600"}), page(1))
    with Client(kind, service) as client:
        pets = client.list_pets()
        next(pets)
        with pytest.raises(RateLimited):
            next(pets)
        client.clock.now += 3600
        assert len(list(pets)) == 1
    assert [request.url.query for request in service.requests[1:]] == [b"cursor=x"] * 2


def test_get_pet_warns_with_the_date_and_the_replacement_and_names_the_callers_line(kind: Kind) -> None:
    service = Service(response(200, REX))
    with Client(kind, service) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert client.get_pet(1).name == "Rex"
    (warning,) = caught
    assert warning.category is DeprecationWarning
    assert "5 December 2030" in str(warning.message)
    assert "list_pets" in str(warning.message)
    assert warning.filename.endswith("fakes.py"), "where the test's client calls it"
    assert str(service.requests[0].url) == f"{LIVE}/pets/1"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_get_pet_raises_what_the_service_says(kind: Kind) -> None:
    service = Service(refusal(404, "pet_not_found", {"X-Request-Id": "r-1"}))
    with Client(kind, service) as client, pytest.raises(PetNotFound) as raised:
        client.get_pet(1)
    assert raised.value.request_id == "r-1"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_id_is_a_number(kind: Kind) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError):
        client.get_pet("1/../../secrets")  # type: ignore[arg-type]  # what a type checker would have found


def test_a_429_pauses_every_call_of_the_client(kind: Kind) -> None:
    service = Service(refusal(429, "rate_limit_exceeded", {"Retry-After": "100", **LIMITS}), page(1))
    with Client(kind, service) as client:
        with pytest.raises(RateLimited) as first:
            client.create_pet("Rex", 7)
        with pytest.raises(RateLimited) as second:
            client.create_pet("Ada", 7)
        assert (first.value.retry_after, second.value.retry_after) == (100, 100)
        assert (second.value.limit, second.value.remaining, second.value.reset) == (60, 59, 1794614400)
        assert len(service.requests) == 1, "the second was never sent"
        client.clock.now += 50
        assert len(list(client.list_pets())) == 1
        assert 50 <= sum(client.clock.slept) < 50.1


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (httpx.ConnectError("refused"), ConnectionFailed),
        (httpx.RemoteProtocolError("cut"), ConnectionFailed),
        (httpx.ReadError(""), ConnectionFailed),
        (httpx.DecodingError("not gzip"), ConnectionFailed),
        (httpx.InvalidURL("Invalid port"), ConnectionFailed),
        (UnicodeError("label empty or too long"), ConnectionFailed),
        (httpx.ConnectTimeout("slow"), TimedOut),
        (httpx.ReadTimeout("slow"), TimedOut),
    ],
)
def test_no_answer_is_retried_and_raised_with_the_address_and_its_cause(
    kind: Kind, raised: Exception, expected: type[PetstoreError]
) -> None:
    service = Service(*[raised] * 3)
    with Client(kind, service) as client, pytest.raises(expected, match=LIVE) as caught:
        client.create_pet("Rex", 7)
    assert caught.value.__cause__ is raised
    assert len(service.requests) == 3


def test_what_is_not_the_networks_fault_is_not_hidden_and_gives_the_place_back(kind: Kind) -> None:
    service = Service(ZeroDivisionError("a bug in a transport"), response(201, REX))
    with Client(kind, service) as client:
        with pytest.raises(ZeroDivisionError):
            client.create_pet("Rex", 7)
        client.create_pet("Rex", 7)
        assert client.clock.slept == []


def test_a_transport_that_runs_out_of_answers_is_not_taken_for_a_result(kind: Kind) -> None:
    """`next(answers)` in a test's transport is common, and its StopIteration also is how a flow returns."""
    service = Service(StopIteration())
    with Client(kind, service) as client, pytest.raises((StopIteration, RuntimeError)):
        client.create_pet("Rex", 7)


def test_each_try_is_told_to_the_hook_and_to_the_log(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "petstore_client")
    service = Service(refusal(500, "internal_error"), response(201, REX))
    with Client(kind, service) as client:
        client.create_pet("Rex", 7)
        assert [(it.number, it.status, it.code) for it in client.tries] == [(1, 500, "internal_error"), (2, 201, None)]
    lines = [record.getMessage() for record in caplog.records if record.name == "petstore_client"]
    assert len(lines) == 2
    assert lines[0].startswith("POST /pets: 500 internal_error in ")


def test_the_key_is_in_no_repr_no_error_and_no_log(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    service = Service(httpx.ConnectError("refused"), refusal(500, "internal_error"), refusal(401, "unauthorized"))
    seen: list[str] = []
    with Client(kind, service) as client:
        with pytest.raises(Unauthorized) as raised:
            client.create_pet("Rex", 7)
        seen += [repr(client.inner), repr(vars(client.inner)), repr(client.tries), caplog.text]
        seen += [repr(vars(part)) for part in vars(client.inner).values() if hasattr(part, "__dict__")]
        seen += [repr(raised.value), repr(vars(raised.value))]
        told = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
        seen += [line for line in told.format() if "fakes.py" not in line]
    assert all(KEY not in text for text in seen)
    assert "[secure]" in "".join(seen), "the traceback did show the locals that hold it"


class Trickle(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that never ends, a byte at a time."""

    def __iter__(self) -> Iterator[bytes]:
        while True:
            time.sleep(0.01)  # what is being tested is real time: the total of a try
            yield b"x"

    async def __aiter__(self) -> Any:
        while True:
            await asyncio.sleep(0.01)  # as above
            yield b"x"


def test_an_answer_that_trickles_for_ever_is_given_up_after_the_total(kind: Kind) -> None:
    service = Service(httpx.Response(200, stream=Trickle()))
    with Client(kind, service, timeout=0.2, retries=0) as client:
        began = time.monotonic()
        with pytest.raises(TimedOut):
            next(client.list_pets())
        assert 0.15 < time.monotonic() - began < 5


def test_a_cancelled_task_gives_its_place_back() -> None:
    async def scenario() -> Pet:
        hung = httpx.Response(200, stream=Trickle())
        async with AsyncPetstore(KEY, transport=Service(hung, response(201, REX)).transport) as client:
            task = asyncio.create_task(client.create_pet("Rex", 7))
            await asyncio.sleep(0.05)  # into the middle of its answer, which never ends
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(0.5):  # less than the silence after which one more may ask
                return await client.create_pet("Rex", 7)

    assert asyncio.run(scenario()).name == "Rex"


def test_headers_that_come_twice_are_joined(kind: Kind) -> None:
    both = httpx.Response(
        200, json=[REX], headers=[("Link", "</docs>; rel=help"), ("Link", "</v1/pets?a=1>; rel=next")]
    )
    service = Service(both, response(200, [REX]))
    with Client(kind, service) as client:
        assert len(list(client.list_pets())) == 2


def test_a_copy_of_a_service_error_is_equal_in_all_that_it_says(kind: Kind) -> None:
    with Client(kind, Service(refusal(400, "invalid_body"))) as client, pytest.raises(InvalidRequest) as raised:
        client.create_pet("", 7)
    assert vars(copy.copy(raised.value)) == vars(raised.value)
