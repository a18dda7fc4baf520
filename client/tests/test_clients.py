"""Tests that both clients must pass: requests, results, errors, raw responses, and the secrecy of the key."""

import copy
import logging
import pickle
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator

import httpx2
import pytest

from fakes import BASE_URL, KEY, REX, Client, Kind, Service, created, error, limits, page, response
from petstore_client import (
    ConnectionFailed,
    Page,
    Pet,
    PetNotFound,
    PetStatus,
    PetstoreError,
    RateLimit,
    TimedOut,
    Unauthorized,
    UnexpectedResponse,
    __version__,
)


def test_create_sends_the_key_an_idempotency_key_and_json(kind: Kind) -> None:
    service = Service(created(limits(59)))
    with Client(kind, service) as client:
        assert client.create_pet("Rex", 7) == Pet(1, "Rex", 7, PetStatus.AVAILABLE)
        assert client.rate_limit == RateLimit(60, 59, 1_800_000_060, "minute")
    (request,) = service.requests
    assert (request.method, str(request.url)) == ("POST", f"{BASE_URL}/pets")
    assert request.content == b'{"name":"Rex","categoryId":7}'
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.headers["Content-Type"] == request.headers["Accept"] == "application/json"
    assert request.headers["User-Agent"] == f"petstore-client/{__version__}"
    assert len(request.headers["Idempotency-Key"]) == 32


def test_attempts_share_an_idempotency_key_and_calls_do_not(kind: Kind) -> None:
    service = Service(httpx2.ReadError("cut"), error(503, "unavailable"), created(), created())
    with Client(kind, service) as client:
        client.create_pet("Rex", 7)
        client.create_pet("Rex", 7)
        assert service.waits == [0.375, 0.75, 0]
    keys = [request.headers["Idempotency-Key"] for request in service.requests]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert len({request.content for request in service.requests}) == 1


def test_an_idempotency_key_can_be_given(kind: Kind) -> None:
    service = Service(created())
    with Client(kind, service) as client:
        client.create_pet("Rex", 7, status="sold", idempotency_key="order-17")
    assert service.requests[0].headers["Idempotency-Key"] == "order-17"


def test_a_cursor_that_makes_the_url_too_long_is_a_failed_connection(kind: Kind) -> None:
    service = Service()
    with Client(kind, service) as client, pytest.raises(ConnectionFailed, match="URL too long"):
        next(client.list_pets(cursor="x" * 70_000))
    assert service.requests == []


def test_a_page_is_requested_when_the_iteration_reaches_it(kind: Kind) -> None:
    service = Service(page(2, "x"), page(1, first_id=3))
    with Client(kind, service) as client:
        pets = client.list_pets(PetStatus.AVAILABLE, page_size=2)
        assert service.requests == []
        assert [next(pets).id, next(pets).id] == [1, 2]
        assert len(service.requests) == 1
        assert [pet.id for pet in pets] == [3]
        assert next(pets, None) is None
    assert [str(request.url) for request in service.requests] == [
        f"{BASE_URL}/pets?limit=2&status=available",
        f"{BASE_URL}/pets?limit=2&status=available&cursor=x",
    ]


def test_an_empty_list_is_one_empty_page(kind: Kind) -> None:
    with Client(kind, Service(page(0), page(0))) as client:
        assert list(client.pages()) == [Page(())]
        assert list(client.list_pets()) == []


def test_with_raw_response_raises_and_retries_as_usual(kind: Kind) -> None:
    service = Service(error(500, "internal_error"), error(404, "pet_not_found"))
    with Client(kind, service) as client:
        raw = client.inner.with_options(strict=True).with_raw_response
        with pytest.raises(PetNotFound), pytest.warns(DeprecationWarning, match="get_pet"):
            client.finish(raw.get_pet(1))  # pyright: ignore[reportDeprecated]
    assert len(service.requests) == 2


def test_the_key_is_not_sent_to_the_host_of_a_link(kind: Kind) -> None:
    elsewhere = {"Link": '<https://evil.example/v1/pets?cursor=x>; rel="next"'}
    service = Service(response(200, [REX], elsewhere), response(200, [REX]))
    with Client(kind, service) as client:
        assert len(list(client.list_pets())) == 2
    assert {request.url.host for request in service.requests} == {"127.0.0.1"}


def test_get_pet_warns_with_the_date_the_replacement_and_the_line_of_the_caller(kind: Kind) -> None:
    service = Service(response(200, REX))
    with Client(kind, service) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert client.get_pet(1).name == "Rex"
    (warning,) = caught
    assert warning.category is DeprecationWarning
    assert "5 December 2030" in str(warning.message)
    assert "list_pets" in str(warning.message)
    assert warning.filename.endswith("fakes.py"), "where the fake client calls it"
    assert str(service.requests[0].url) == f"{BASE_URL}/pets/1"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_id_that_is_not_a_number_is_a_value_error(kind: Kind) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError):
        client.get_pet("1/../../secrets")  # type: ignore[arg-type]  # a type checker would report this


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (httpx2.ConnectError("refused"), ConnectionFailed),
        (httpx2.RemoteProtocolError("cut"), ConnectionFailed),
        (httpx2.ReadError(""), ConnectionFailed),
        (httpx2.InvalidURL("Invalid port"), ConnectionFailed),
        (UnicodeError("label empty or too long"), ConnectionFailed),
        (httpx2.ConnectTimeout("slow"), TimedOut),
        (httpx2.ReadTimeout("slow"), TimedOut),
    ],
)
def test_no_response_is_raised_with_the_base_url_and_its_cause(
    kind: Kind, raised: Exception, expected: type[PetstoreError]
) -> None:
    with Client(kind, Service(raised), total_timeout=0.1) as client, pytest.raises(expected, match=BASE_URL) as caught:
        client.create_pet("Rex", 7)
    assert caught.value.__cause__ is raised


def test_an_exception_that_is_not_of_the_network_is_raised_and_its_permit_given_back(kind: Kind) -> None:
    service = Service(ZeroDivisionError("a bug in a transport"), created())
    with Client(kind, service) as client:
        with pytest.raises(ZeroDivisionError):
            client.create_pet("Rex", 7)
        client.create_pet("Rex", 7)


def test_a_stop_iteration_in_a_transport_is_not_taken_for_a_result(kind: Kind) -> None:
    """A test's transport may well call `next(responses)`, and coroutines also return by raising StopIteration."""
    service = Service(StopIteration())
    with Client(kind, service) as client, pytest.raises((StopIteration, RuntimeError)):
        client.create_pet("Rex", 7)


def test_each_attempt_is_reported_to_the_callback_and_to_the_log(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "petstore_client")
    service = Service(error(500, "internal_error"), created())
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
    unauthorized = error(401, "unauthorized")
    service = Service(httpx2.ConnectError("refused"), error(500, "internal_error"), unauthorized)
    seen: list[str] = []
    with Client(kind, service) as client:
        with pytest.raises(Unauthorized) as raised:
            client.create_pet("Rex", 7)
        seen += [*all_reprs(client.inner), repr(client.attempts), caplog.text]
        seen += [repr(raised.value), repr(vars(raised.value))]
        formatted = traceback.TracebackException.from_exception(raised.value, capture_locals=True).format()
        seen += [line for line in formatted if "fakes.py" not in line]
    assert all(KEY not in text for text in seen)
    assert "[secure]" in "".join(seen), "what holds the key was shown"


def test_every_error_with_a_response_has_its_headers(kind: Kind) -> None:
    extra = {"X-Request-Id": "r-1", "X-Extra": "seen"}
    service = Service(error(410, "gone", extra), response(200, "no animal", extra), httpx2.ReadError("cut"))
    with Client(kind, service, total_timeout=0.1) as client:
        raised = []
        for _ in range(3):
            with pytest.raises(PetstoreError) as caught:
                client.create_pet("Rex", 7)
            raised.append(caught.value)
    gone, unexpected, failed = raised
    assert isinstance(unexpected, UnexpectedResponse)
    for each in (gone, unexpected, copy.copy(gone), pickle.loads(pickle.dumps(unexpected))):
        assert each.headers is not None
        assert (each.headers["x-extra"], each.headers["X-EXTRA"]) == ("seen", "seen")
    assert failed.headers is None


WAITING = """
from petstore_client.testing import FakeService
service = FakeService()
service.refuse("rate_limit_exceeded", retry_after=41)
print(list(service.client().list_pets()))
"""


@pytest.mark.parametrize(
    ("before", "printed"),
    [
        ("", "waiting 43 s: per-minute rate limit\n"),
        ("import logging; logging.getLogger('petstore_client').setLevel(logging.ERROR)", ""),
        ("import logging; logging.getLogger('petstore_client').addHandler(logging.NullHandler())", ""),
        ("import logging; logging.basicConfig()", "WARNING:petstore_client:waiting 43 s: per-minute rate limit\n"),
    ],
)
def test_a_long_wait_is_printed_without_configuring_logging_and_can_be_silenced(before: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", before + WAITING], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", printed)


def test_a_repeated_header_is_joined(kind: Kind) -> None:
    both = httpx2.Response(
        200, json=[REX], headers=[("Link", "</docs>; rel=help"), ("Link", "</v1/pets?cursor=a>; rel=next")]
    )
    service = Service(both, response(200, [REX]))
    with Client(kind, service) as client:
        assert len(list(client.list_pets())) == 2
