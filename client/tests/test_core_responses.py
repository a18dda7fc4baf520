"""How responses are interpreted and logged: errors by code, the rate limit, pages and unexpected bodies."""

import json
import logging
import pickle
import re
import time
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

import petstore_client
from fakes import REX, Client, Kind, Outcome, Service, created, error, response
from petstore_client import (
    ApiError,
    Attempt,
    ConnectionFailed,
    InvalidRequest,
    KeyBanned,
    Page,
    Pet,
    PetNotFound,
    PetStatus,
    PetstoreError,
    RateLimit,
    RateLimited,
    RawResponse,
    RequestTimeout,
    ServerError,
    Status,
    UnexpectedResponse,
    Wait,
    _errors,
)
from petstore_client._errors import CLASSES, api_error
from petstore_client._escaping import escape
from petstore_client._events import Events
from petstore_client._messages import Response
from petstore_client._responses import next_cursor

API = (Path(__file__).parents[2] / "docs/api.md").read_text()
CODES = re.findall(r"^\| `([a-z_]+)` \| (\d{3})\b", API, re.MULTILINE)


def create(outcome: Outcome, *arguments: Any, **options: Any) -> tuple[RawResponse[Pet], httpx2.Request]:
    """Creates an animal without repeating the request. Returns the raw response and the request."""
    service = Service(outcome)
    with Client("sync", service, total_timeout=0.1) as client:
        raw = client.inner.with_raw_response.create_pet(*(arguments or ("Rex", 7)), **options)
    return cast(RawResponse[Pet], raw), service.requests[0]


def failure(outcome: Outcome) -> PetstoreError:
    with pytest.raises(PetstoreError) as raised:
        create(outcome)
    return raised.value


def list_page(outcome: Outcome, **arguments: Any) -> tuple[RawResponse[Page], httpx2.Request]:
    service = Service(outcome)
    with Client("sync", service) as client:
        raw = client.inner.with_raw_response.list_pets(**arguments)
    return cast(RawResponse[Page], raw), service.requests[0]


@pytest.mark.parametrize(("code", "status"), CODES)
def test_every_documented_code_is_raised_as_its_class(code: str, status: str) -> None:
    raised = failure(error(int(status), code, {"X-Request-Id": "r-1"}))
    assert type(raised) is CLASSES[code]
    assert (raised.code, raised.message) == (code, f"It is {code}.")
    assert (raised.status, raised.request_id) == (int(status), "r-1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(418, ApiError), (302, ApiError), (409, ApiError), (408, RequestTimeout), (429, RateLimited), (599, ServerError)],
)
def test_an_unknown_code_is_raised_as_an_api_error(status: int, kind: type[ApiError]) -> None:
    raised = failure(error(status, "a_code_of_the_future"))
    assert type(raised) is kind
    assert (raised.code, raised.status) == ("a_code_of_the_future", status)


def test_unknown_members_of_an_error_are_ignored() -> None:
    body = {"code": "invalid_body", "message": "No.", "status": 400, "fields": ["name"]}
    raised = failure(response(400, body))
    assert isinstance(raised, InvalidRequest)
    assert raised.message == "No."


@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"[]", b'{"code": 5}', b'{"code":"\xff"}',
                                  b'{"code":"a","message":"b","x":' + b"[" * 100_000])  # fmt: skip
def test_an_error_without_an_error_body_is_still_an_api_error(body: bytes) -> None:
    raised = failure(response(502, body))
    assert type(raised) is ServerError
    assert (raised.code, raised.status) == ("unknown", 502)


@pytest.mark.parametrize("body", [b"", b"<html>Hello</html>", b"[]", b"{}", b'{"id":"1"}', b"\xff", b"[" * 200_000,
                                  b'{"id":1,"name":"Rex","categoryId":7,"status":5}'])  # fmt: skip
def test_a_success_with_another_body_is_an_unexpected_response(body: bytes) -> None:
    raw, _ = create(response(200, body, {"X-Request-Id": "r"}))
    with pytest.raises(UnexpectedResponse) as raised:
        raw.parse()
    assert (raised.value.code, raised.value.status, raised.value.request_id) == ("unexpected_response", 200, "r")


def test_an_unknown_member_or_status_of_an_animal_does_not_break_a_list() -> None:
    raw, _ = list_page(response(200, [REX | {"colour": "brown"}, REX | {"id": 2, "status": "reserved"}]))
    rex, other = raw.parse()
    assert rex == Pet(1, "Rex", 7, PetStatus.AVAILABLE)
    assert type(rex.status) is PetStatus
    assert (other.status, type(other.status)) == ("reserved", str)
    assert other.to_dict() == REX | {"id": 2, "status": "reserved"}


def test_a_raw_response_has_the_status_the_headers_and_the_request_id() -> None:
    raw, _ = create(response(200, REX, {"ETag": '"abc"', "X-Request-Id": "r-1"}))
    assert (raw.status, raw.request_id) == (200, "r-1")
    assert raw.headers["etag"] == '"abc"'
    assert raw.content.startswith(b'{"id"')
    assert repr(raw) == "<RawResponse 200>"


def test_the_tree_of_errors_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for indent, name in re.findall(r"^([│├└─ ]*)([A-Z]\w+)(?:\s|$)", str(_errors.__doc__), re.MULTILINE)[1:]:
        depth = len(indent) // 4
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else ""
    classes = [c for c in vars(_errors).values() if isinstance(c, type) and issubclass(c, PetstoreError)]
    assert drawn == {c.__name__: c.__base__.__name__ if c is not PetstoreError else "" for c in classes if c.__base__}
    assert {c.__name__ for c in classes} <= set(petstore_client.__all__)


def test_an_error_shows_its_values_and_can_be_pickled() -> None:
    raised = api_error("key_banned", "Wait.", 429, {"x-request-id": "r-1"}, 60.0, RateLimit(60, 0, 1794614400))
    copy = pickle.loads(pickle.dumps(raised))
    assert copy.headers == raised.headers == {"x-request-id": "r-1"}
    for shown in (raised, copy):
        assert isinstance(shown, KeyBanned)
        assert repr(shown) == "<KeyBanned: Wait. (key_banned, status 429, request r-1, retry after 60 s)>"
        assert (shown.retry_after, shown.limit, shown.reset) == (60.0, 60, 1794614400)
    assert str(ConnectionFailed("Not reached", code="connection_failed")) == "Not reached (connection_failed)"


def test_the_values_of_an_error_are_none_if_the_response_has_none() -> None:
    raised = api_error("rate_limit_exceeded", "Wait.", 429)
    assert isinstance(raised, RateLimited)
    assert raised.retry_after is raised.limit is raised.remaining is raised.reset is None
    assert InvalidRequest("no", code="invalid_body", status=400).retry_after is None


def test_the_reset_of_a_rate_limit_is_also_a_datetime() -> None:
    assert RateLimit(60, 58, 1794614400).reset_at.isoformat() == "2026-11-14T00:00:00+00:00"


@pytest.mark.parametrize(
    ("link", "cursor"),
    [
        ('</v1/pets?limit=2&cursor=abc>; rel="next"', "abc"),
        ('<https://elsewhere.example/v1/pets?cursor=abc>; rel="next"', "abc"),
        ('</docs>; rel="help", </v1/pets?cursor=abc>; title="a, b"; rel=next', "abc"),
        ('</v1/pets?cursor=abc>; REL="last Next"', "abc"),
        ('</v1/pets?cursor=a%2Bb>; rel="next"', "a+b"),
        ('</v1/pets>; rel="successor-version", </docs>; rel="deprecation"', None),
        ('</v1/pets?cursor=abc>; rel="prev"', None),
        ("</v1/pets?cursor=abc>", None),
        ("", None),
    ],
)
def test_the_next_cursor_is_found_among_any_links(link: str, cursor: str | None) -> None:
    assert next_cursor(Response(200, {"link": link}, b"[]")) == cursor


@pytest.mark.parametrize(
    "link", ["<" * 30_000, "<>" * 15_000, "<a>;" * 8_000, "<a>; rel=" + " " * 30_000, ";=" * 15_000]
)
def test_a_hostile_link_takes_linear_time(link: str) -> None:
    began = time.process_time()
    assert next_cursor(Response(200, {"link": link}, b"[]")) is None
    assert time.process_time() - began < 1


def test_a_link_to_the_next_page_without_a_cursor_is_an_unexpected_response() -> None:
    raw, _ = list_page(response(200, [REX], {"Link": '</v1/pets?page=2>; rel="next"'}))
    with pytest.raises(UnexpectedResponse, match="no cursor"):
        raw.parse()


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        ({}, "limit=100"),
        ({"status": PetStatus.SOLD, "page_size": 2}, "limit=2&status=sold"),
        ({"page_size": 2, "cursor": "a+b"}, "limit=2&cursor=a%2Bb"),
    ],
)
def test_the_arguments_of_a_list_become_its_query(arguments: dict[str, Any], query: str) -> None:
    _, request = list_page(response(200, [REX]), **arguments)
    assert (request.url.path, request.url.query.decode()) == ("/v1/pets", query)


def test_a_page_has_its_animals_and_the_next_cursor() -> None:
    link = {"Link": '</v1/pets?limit=1&cursor=abc>; rel="next"'}
    page = list_page(response(200, [REX, REX | {"id": 2}], link))[0].parse()
    assert [pet.id for pet in page] == [pet.id for pet in page.pets] == [1, 2]
    assert (len(page), page.next_cursor) == (2, "abc")
    assert page.to_dict() == {"pets": [REX, REX | {"id": 2}], "nextCursor": "abc"}


def test_a_304_has_no_page() -> None:
    """A caller who sends If-None-Match in a header gets it as a raw response."""
    raw, _ = list_page(response(304))
    assert raw.status == 304
    with pytest.raises(UnexpectedResponse):
        raw.parse()


def test_models_become_dictionaries_and_json_with_the_names_of_the_interface() -> None:
    rex = Pet(1, "Rex", 7, PetStatus.AVAILABLE)
    assert rex.to_dict() == REX
    assert type(rex.to_dict()["status"]) is str
    assert rex.to_json() == '{"id":1,"name":"Rex","categoryId":7,"status":"available"}'
    assert RateLimit(60, 59, 5, "day").to_dict() == {"limit": 60, "remaining": 59, "reset": 5, "window": "day"}
    assert Wait(3.0, "queue", 5).to_dict() == {"seconds": 3.0, "reason": "queue", "calls": 5}


def test_each_attempt_is_reported_once_with_its_outcome() -> None:
    service = Service(
        error(503, "unavailable", {"X-Request-Id": "a"}, retry_after=2), httpx2.ReadError("cut"), created()
    )
    with Client("sync", service) as client:
        client.create_pet("Rex", 7)
    assert client.attempts == [
        Attempt("POST", "/pets", 1, 0.0, 503, "unavailable", "a", 2.25),
        Attempt("POST", "/pets", 2, 0.0, None, "connection_failed", None, 0.75),
        Attempt("POST", "/pets", 3, 0.0, 201, None, None, None),
    ]


def test_an_attempt_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "petstore_client")
    events = Events()
    events.attempt(Attempt("GET", "/pets/1", 1, 0.0123, 429, "rate_limit_exceeded", "r-1", 41.0))
    events.attempt(Attempt("GET", "/pets/1", 2, 5.0, None, "timed_out", None, None))
    events.attempt(Attempt("GET", "/pets/1", 2, 0.001, 200, None, "r-2", None))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            "GET /pets/1: 429 rate_limit_exceeded in 0.012 s, attempt 1, retrying in 41.00 s, request r-1",
        ),
        ("INFO", "GET /pets/1: no response timed_out in 5.000 s, attempt 2"),
        ("DEBUG", "GET /pets/1: 200 in 0.001 s, attempt 2, request r-2"),
    ]
    caplog.set_level(logging.WARNING, "petstore_client")
    events.attempt(Attempt("GET", "/pets/1", 1, 0.0, 200, None, None, None))
    assert len(caplog.records) == 3


CONTROLS = "\x00\x1b\n\x7f\x80\x9b\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"


def test_control_characters_are_escaped_and_json_keeps_its_meaning() -> None:
    for character in CONTROLS:
        escaped = escape(f"a{character}b")
        assert escaped == f"a\\u{ord(character):04x}b"
        assert escaped.isascii()
    assert escape("\ud800") == "\\ud800"
    assert escape("Łucja 🐶\u00a0é") == "Łucja 🐶\u00a0é", "no other characters must be escaped"
    name = f'Rex{CONTROLS}"\\'
    assert json.loads(escape(Pet(1, name, 7, PetStatus.SOLD).to_json()))["name"] == name


def test_a_log_line_has_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "petstore_client")
    Events().attempt(Attempt("GET", "/pets", 1, 0.0, 418, "a\n\u202eb", "r\x9b", None))
    assert caplog.messages == ["GET /pets: 418 a\\u000a\\u202eb in 0.000 s, attempt 1, request r\\u009b"]


class Category(IntEnum):
    DOGS = 7


class Name(StrEnum):
    REX = "Rex"


class SubclassOfStr(str): ...


class SubclassOfInt(int): ...


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (("Rex", 7), b'{"name":"Rex","categoryId":7}'),
        (("Rex", 7, PetStatus.SOLD), b'{"name":"Rex","categoryId":7,"status":"sold"}'),
        (("Rex", 7, "pending"), b'{"name":"Rex","categoryId":7,"status":"pending"}'),
        ((Name.REX, Category.DOGS), b'{"name":"Rex","categoryId":7}'),
        ((SubclassOfStr("Rex"), SubclassOfInt(7)), b'{"name":"Rex","categoryId":7}'),
    ],
)
def test_a_new_animal_is_sent_as_json(arguments: tuple[str, int] | tuple[str, int, Status], body: bytes) -> None:
    name, category_id, *status = arguments
    assert create(created(), name, category_id, status=status[0] if status else None)[1].content == body


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": b"x"}, "name must be str, not bytes"),
        ({"name": None}, "name must be str, not NoneType"),
        ({"name": 5}, "name must be str, not int"),
        ({"category_id": "1"}, "category_id must be int, not str"),
        ({"category_id": 1.0}, "category_id must be int, not float"),
        ({"category_id": True}, "category_id must be int, not bool"),
        ({"status": b"sold"}, "status must be str, not bytes"),
        ({"idempotency_key": b"key"}, "idempotency_key must be str, not bytes"),
    ],
)
def test_an_argument_that_json_would_change_is_a_type_error_before_anything_is_sent(
    kind: Kind, arguments: dict[str, Any], why: str
) -> None:
    service = Service()
    with Client(kind, service) as client, pytest.raises(TypeError, match=why):
        client.create_pet(**({"name": "Rex", "category_id": 7} | arguments))
    assert service.requests == []


def test_a_name_that_is_not_valid_unicode_is_not_sent() -> None:
    with pytest.raises(ValueError, match="not valid Unicode"):
        create(created(), "Rex \udcff", 7)


@pytest.mark.parametrize("bad", ["", "a b", "a\nb", "é", "x" * 256])
def test_an_idempotency_key_that_no_header_can_carry_is_not_sent(bad: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        create(created(), "Rex", 7, idempotency_key=bad)


def test_a_created_animal_without_a_location_is_returned() -> None:
    """As of 5 December 2030, a 201 has no `Location`."""
    assert create(created())[0].parse().id == 1


def test_get_pet_of_the_raw_operations_warns(kind: Kind) -> None:
    with Client(kind, Service(response(200, REX))) as client:
        with pytest.warns(DeprecationWarning, match="5 December 2030"):
            call = client.inner.with_raw_response.get_pet(1)  # pyright: ignore[reportDeprecated]
        assert client.finish(call).parse().name == "Rex"


def test_a_pet_not_found_is_also_a_not_found() -> None:
    assert issubclass(PetNotFound, petstore_client.NotFound)
