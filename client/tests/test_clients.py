"""Tests that both clients must pass: requests, results, errors, raw responses, and the secrecy of the key."""

import asyncio
import copy
import logging
import pickle
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fakes import KEY, REX, Client, Kind, Service, http_error, http_page, http_response
from petstore_client import (
    LIVE,
    AsyncPetstore,
    ConnectionFailed,
    Page,
    Pet,
    PetNotFound,
    PetStatus,
    PetstoreError,
    RateLimit,
    RateLimited,
    TimedOut,
    Unauthorized,
    UnexpectedResponse,
    __version__,
)
from petstore_client._operations import MIN_POLL

LIMITS = {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "59", "X-RateLimit-Reset": "1794614400"}


def test_create_sends_the_key_an_idempotency_key_and_json(kind: Kind) -> None:
    service = Service(http_response(201, REX, LIMITS))
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


def test_attempts_share_an_idempotency_key_and_calls_do_not(kind: Kind) -> None:
    broken = httpx2.ReadError("cut")
    service = Service(broken, http_error(503, "unavailable"), http_response(201, REX), http_response(201, REX))
    with Client(kind, service) as client:
        client.create_pet("Rex", 7)
        client.create_pet("Rex", 7)
        assert client.clock.slept == [0.375, 0.75]
    keys = [request.headers["Idempotency-Key"] for request in service.requests]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert len({request.content for request in service.requests}) == 1


def test_an_idempotency_key_can_be_given(kind: Kind) -> None:
    service = Service(http_response(201, REX))
    with Client(kind, service) as client:
        client.create_pet("Rex", 7, status="sold", idempotency_key="order-17")
    assert service.requests[0].headers["Idempotency-Key"] == "order-17"


def test_a_cursor_that_makes_the_url_too_long_is_a_failed_connection(kind: Kind) -> None:
    service = Service(http_page(1, "x" * 70_000))
    with Client(kind, service) as client, pytest.raises(ConnectionFailed, match="URL too long"):
        list(client.list_pets())


def test_a_page_is_requested_when_the_iteration_reaches_it(kind: Kind) -> None:
    service = Service(http_page(2, "x"), http_page(1, first_id=3))
    with Client(kind, service) as client:
        pets = client.list_pets(PetStatus.AVAILABLE, page_size=2)
        assert service.requests == []
        assert [next(pets).id, next(pets).id] == [1, 2]
        assert len(service.requests) == 1
        assert [pet.id for pet in pets] == [3]
        assert next(pets, None) is None
    assert [str(request.url) for request in service.requests] == [
        f"{LIVE}/pets?limit=2&status=available",
        f"{LIVE}/pets?limit=2&status=available&cursor=x",
    ]


def test_an_empty_list_is_one_empty_page(kind: Kind) -> None:
    with Client(kind, Service(http_page(0), http_page(0))) as client:
        assert list(client.pages()) == [Page(())]
        assert list(client.list_pets()) == []


def test_the_animals_of_an_unchanged_page_are_iterated_over(kind: Kind) -> None:
    service = Service(http_page(2, etag='"v1"'), http_response(304))
    with Client(kind, service) as client:
        known = next(client.pages())
        assert list(client.list_pets(if_none_match=known)) == list(known.pets)


def test_with_raw_response_raises_and_retries_as_usual(kind: Kind) -> None:
    service = Service(http_error(500, "internal_error"), http_error(404, "pet_not_found"))
    with Client(kind, service) as client:
        raw = client.inner.with_options(max_retries=1).with_raw_response
        with pytest.raises(PetNotFound), pytest.warns(DeprecationWarning, match="get_pet"):
            client.finish(raw.get_pet(1))  # pyright: ignore[reportDeprecated]
    assert len(service.requests) == 2


def test_the_key_is_not_sent_to_the_host_of_a_link(kind: Kind) -> None:
    elsewhere = {"Link": '<https://evil.example/v1/pets?cursor=x>; rel="next"'}
    service = Service(http_response(200, [REX], elsewhere), http_response(200, [REX]))
    with Client(kind, service) as client:
        assert len(list(client.list_pets())) == 2
    assert {request.url.host for request in service.requests} == {"127.0.0.1"}


def test_an_iterator_requests_the_same_page_again_after_an_error(kind: Kind) -> None:
    service = Service(http_page(1, "x"), http_error(429, "rate_limit_exceeded", {"Retry-After": "3600"}), http_page(1))
    with Client(kind, service) as client:
        pets = client.list_pets()
        next(pets)
        with pytest.raises(RateLimited):
            next(pets)
        client.clock.now += 3600
        assert len(list(pets)) == 1
    assert [request.url.query for request in service.requests[1:]] == [b"limit=100&cursor=x"] * 2


def test_get_pet_warns_with_the_date_the_replacement_and_the_line_of_the_caller(kind: Kind) -> None:
    service = Service(http_response(200, REX))
    with Client(kind, service) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert client.get_pet(1).name == "Rex"
    (warning,) = caught
    assert warning.category is DeprecationWarning
    assert "5 December 2030" in str(warning.message)
    assert "list_pets" in str(warning.message)
    assert warning.filename.endswith("fakes.py"), "where the fake client calls it"
    assert str(service.requests[0].url) == f"{LIVE}/pets/1"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_id_that_is_not_a_number_is_a_value_error(kind: Kind) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError):
        client.get_pet("1/../../secrets")  # type: ignore[arg-type]  # a type checker would report this


def test_a_429_pauses_all_calls_of_the_client(kind: Kind) -> None:
    service = Service(http_error(429, "rate_limit_exceeded", {"Retry-After": "100", **LIMITS}), http_page(1))
    with Client(kind, service, total_timeout=90) as client:
        with pytest.raises(RateLimited) as first:
            client.create_pet("Rex", 7)
        with pytest.raises(RateLimited) as second:
            client.create_pet("Ada", 7)
        assert first.value.retry_after == 100
        assert second.value.retry_after is not None
        assert second.value.retry_after == 104, "the rest of the pause, with its jitter of half of 8 s"
        assert second.value.headers["retry-after"] == "100"
        assert (second.value.limit, second.value.remaining, second.value.reset) == (60, 59, 1794614400)
        assert len(service.requests) == 1, "the second was not sent"
        client.clock.now += 50
        assert len(list(client.list_pets())) == 1
        assert client.clock.slept == [54, MIN_POLL], "a moment later than the end: the refused call would go first"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (httpx2.ConnectError("refused"), ConnectionFailed),
        (httpx2.RemoteProtocolError("cut"), ConnectionFailed),
        (httpx2.ReadError(""), ConnectionFailed),
        (httpx2.DecodingError("not gzip"), ConnectionFailed),
        (httpx2.InvalidURL("Invalid port"), ConnectionFailed),
        (UnicodeError("label empty or too long"), ConnectionFailed),
        (httpx2.ConnectTimeout("slow"), TimedOut),
        (httpx2.ReadTimeout("slow"), TimedOut),
    ],
)
def test_no_response_is_retried_and_raised_with_the_base_url_and_its_cause(
    kind: Kind, raised: Exception, expected: type[PetstoreError]
) -> None:
    service = Service(*[raised] * 3)
    with Client(kind, service) as client, pytest.raises(expected, match=LIVE) as caught:
        client.create_pet("Rex", 7)
    assert caught.value.__cause__ is raised
    assert len(service.requests) == 3


def test_an_exception_that_is_not_of_the_network_is_raised_and_its_permit_given_back(kind: Kind) -> None:
    service = Service(ZeroDivisionError("a bug in a transport"), http_response(201, REX))
    with Client(kind, service) as client:
        with pytest.raises(ZeroDivisionError):
            client.create_pet("Rex", 7)
        client.create_pet("Rex", 7)
        assert client.clock.slept == []


def test_a_stop_iteration_in_a_transport_is_not_taken_for_a_result(kind: Kind) -> None:
    """A test's transport may well call `next(responses)`, and coroutines also return by raising StopIteration."""
    service = Service(StopIteration())
    with Client(kind, service) as client, pytest.raises((StopIteration, RuntimeError)):
        client.create_pet("Rex", 7)


def test_each_attempt_is_reported_to_the_callback_and_to_the_log(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "petstore_client")
    service = Service(http_error(500, "internal_error"), http_response(201, REX))
    with Client(kind, service) as client:
        client.create_pet("Rex", 7)
        assert [(attempt.number, attempt.status, attempt.code) for attempt in client.attempts] == [
            (1, 500, "internal_error"),
            (2, 201, None),
        ]
    lines = [record.getMessage() for record in caplog.records if record.name == "petstore_client"]
    assert len(lines) == 2
    assert lines[0].startswith("POST /pets: 500 internal_error in ")


def all_reprs(value: object) -> Iterator[str]:
    """Yields the repr of a value, and of everything that objects of this package contain."""
    yield repr(value)
    if type(value).__module__.startswith("petstore_client.") and hasattr(value, "__dict__"):
        for part in vars(value).values():
            yield from all_reprs(part)


def test_the_key_is_in_no_repr_no_error_and_no_log(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    unauthorized = http_error(401, "unauthorized")
    service = Service(httpx2.ConnectError("refused"), http_error(500, "internal_error"), unauthorized)
    seen: list[str] = []
    with Client(kind, service) as client:
        with pytest.raises(Unauthorized) as raised:
            client.create_pet("Rex", 7)
        seen += [*all_reprs(client.inner), repr(client.attempts), caplog.text]
        seen += [repr(raised.value), repr(vars(raised.value))]
        formatted = traceback.TracebackException.from_exception(raised.value, capture_locals=True).format()
        seen += [line for line in formatted if "fakes.py" not in line]
    assert all(KEY not in text for text in seen)
    assert "[secure]" in "".join(seen), "the headers that hold the key were shown"


class Trickle(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body that arrives one byte at a time and never ends."""

    def __iter__(self) -> Iterator[bytes]:
        while True:
            time.sleep(0.01)  # in real time, like the timeout of an attempt
            yield b"x"

    async def __aiter__(self) -> Any:
        while True:
            await asyncio.sleep(0.01)  # as above
            yield b"x"


def test_a_response_that_never_ends_is_timed_out(kind: Kind) -> None:
    service = Service(httpx2.Response(200, stream=Trickle()))
    with Client(kind, service, timeout=0.2, max_retries=0) as client:
        began = time.monotonic()
        with pytest.raises(TimedOut):
            next(client.list_pets())
        assert 0.15 < time.monotonic() - began < 30


def test_a_cancelled_task_gives_its_permit_back() -> None:
    async def scenario() -> Pet:
        hung = httpx2.Response(200, stream=Trickle())
        async with AsyncPetstore(KEY, transport=Service(hung, http_response(201, REX)).transport) as client:
            task = asyncio.create_task(client.create_pet("Rex", 7))
            await asyncio.sleep(0.05)  # the response has begun but never ends
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(30):
                return await client.create_pet("Rex", 7)

    assert asyncio.run(scenario()).name == "Rex"


def test_every_error_with_a_response_has_its_headers(kind: Kind) -> None:
    extra = {"X-Request-Id": "r-1", "X-Extra": "seen"}
    service = Service(http_error(410, "gone", extra), http_response(200, "no animal", extra), httpx2.ReadError("cut"))
    with Client(kind, service, max_retries=0) as client:
        raised = []
        for _ in range(3):
            with pytest.raises(PetstoreError) as caught:
                client.create_pet("Rex", 7)
            raised.append(caught.value)
    gone, unexpected, failed = raised
    assert isinstance(unexpected, UnexpectedResponse)
    for error in (gone, unexpected, copy.copy(gone), pickle.loads(pickle.dumps(unexpected))):
        assert error.headers is not None
        assert (error.headers["x-extra"], error.headers["X-EXTRA"]) == ("seen", "seen")
    assert failed.headers is None


def test_iterators_and_pages_have_a_repr(kind: Kind) -> None:
    service = Service(http_page(2, "x"), http_page(1))
    prefix = "Async" if kind == "async" else ""
    with Client(kind, service) as client:
        pets = client.inner.list_pets("sold", page_size=2)
        assert repr(pets) == f"<{prefix}PetIterator /pets?limit=2&status=sold>"
        pages = pets.pages()
        assert repr(pages) == f"<{prefix}PageIterator /pets?limit=2&status=sold, next: the first page>"
        fetched = client.iterate(pages)
        assert repr(next(fetched)) == "<Page len=2 next_cursor='x' not_modified=False>"
        assert repr(pages) == f"<{prefix}PageIterator /pets?limit=2&status=sold, next: cursor 'x'>"
        assert repr(next(fetched)) == "<Page len=1 next_cursor=None not_modified=False>"
        assert repr(pages) == f"<{prefix}PageIterator /pets?limit=2&status=sold, at the end>"


WAITING = """
import httpx2
from petstore_client import Petstore
now = 0.0
def sleep(seconds):
    global now
    now += seconds
responses = [httpx2.Response(429, headers={"Retry-After": "41"}), httpx2.Response(200, json=[])]
transport = httpx2.MockTransport(lambda request: responses.pop(0))
store = Petstore("key", transport=transport, clock=lambda: now, sleep=sleep, random=lambda: 0.0)
print(list(store.list_pets()))
"""


@pytest.mark.parametrize(
    ("before", "printed"),
    [
        ("", "waiting 41 s: per-minute rate limit\n"),
        ("import logging; logging.getLogger('petstore_client').setLevel(logging.ERROR)", ""),
        ("import logging; logging.getLogger('petstore_client').addHandler(logging.NullHandler())", ""),
        ("import logging; logging.basicConfig()", "WARNING:petstore_client:waiting 41 s: per-minute rate limit\n"),
    ],
)
def test_a_long_wait_is_printed_without_configuring_logging_and_can_be_silenced(before: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", before + WAITING], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", printed)


@pytest.mark.parametrize(("max_items", "requests"), [(3, 2), (2, 1), (0, 0)])
def test_max_items_ends_the_iteration_in_every_form(kind: Kind, max_items: int, requests: int) -> None:
    for listing in ("list_pets", "pages"):
        service = Service(http_page(2, "x"), http_page(1, "y", first_id=3))
        with Client(kind, service) as client:
            items = list(getattr(client, listing)(max_items=max_items, page_size=2))
            pets = items if listing == "list_pets" else [pet for page in items for pet in page]
            assert [pet.id for pet in pets] == list(range(1, max_items + 1))
        assert len(service.requests) == requests
        assert [request.url.params["limit"] for request in service.requests] == ["2", "1"][:requests]


def test_a_raw_list_has_at_most_max_items_animals(kind: Kind) -> None:
    service = Service(http_page(2, "x"))
    with Client(kind, service) as client:
        raw = client.inner.with_options(max_retries=0).with_raw_response
        assert len(client.finish(raw.list_pets(max_items=2)).parse()) == 2
        with pytest.raises(ValueError, match="max_items"):
            client.finish(raw.list_pets(max_items=0))
    assert [request.url.params["limit"] for request in service.requests] == ["2"]


def test_a_negative_max_items_is_a_value_error_at_once(kind: Kind) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError, match="max_items"):
        client.inner.list_pets(max_items=-1)


def test_a_repeated_header_is_joined(kind: Kind) -> None:
    both = httpx2.Response(
        200, json=[REX], headers=[("Link", "</docs>; rel=help"), ("Link", "</v1/pets?cursor=a>; rel=next")]
    )
    service = Service(both, http_response(200, [REX]))
    with Client(kind, service) as client:
        assert len(list(client.list_pets())) == 2
