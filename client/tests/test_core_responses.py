"""How responses are interpreted and logged: errors by code, the rate limit, pages and unexpected bodies."""

import json
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import petstore_client
from fakes import REX, Clock, Run, error, limits, operations, response
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
    RequestTimeout,
    ServerError,
    Status,
    UnexpectedResponse,
    _errors,
)
from petstore_client._errors import CLASSES, api_error
from petstore_client._escaping import escape
from petstore_client._events import Events
from petstore_client._messages import Failure, Response
from petstore_client._responses import next_cursor

API = (Path(__file__).parents[2] / "docs/api.md").read_text()
CODES = re.findall(r"^\| `([a-z_]+)` \| (\d{3})\b", API, re.MULTILINE)
LAST_PAGE = response(200, [REX])


def get(*outcomes: Response | Failure, **replaced: Any) -> Run:
    clock = Clock()
    return Run(operations(clock, **replaced).fetch_pet(1), outcomes, clock)


def list_page(outcome: Response, **arguments: Any) -> Run:
    clock = Clock()
    return Run(operations(clock).list_pets(**arguments), [outcome], clock)


@pytest.mark.parametrize(("code", "status"), CODES)
def test_every_documented_code_is_raised_as_its_class(code: str, status: str) -> None:
    run = get(*[error(int(status), code, x_request_id="r-1")] * 3)
    assert type(run.error) is CLASSES[code]
    assert (run.error.code, run.error.message) == (code, f"It is {code}.")
    assert (run.error.status, run.error.request_id) == (int(status), "r-1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(418, ApiError), (302, ApiError), (409, ApiError), (408, RequestTimeout), (429, RateLimited), (599, ServerError)],
)
def test_an_unknown_code_is_raised_as_an_api_error(status: int, kind: type[ApiError]) -> None:
    run = get(*[error(status, "a_code_of_the_future")] * 3)
    assert type(run.error) is kind
    assert (run.error.code, run.error.status) == ("a_code_of_the_future", status)


def test_unknown_members_of_an_error_are_ignored() -> None:
    body = {"code": "invalid_body", "message": "No.", "status": 400, "fields": ["name"]}
    raised = get(response(400, body)).error
    assert isinstance(raised, InvalidRequest)
    assert raised.message == "No."


@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"[]", b'{"code": 5}', b'{"code":"\xff"}',
                                  b'{"code":"a","message":"b","x":' + b"[" * 100_000])  # fmt: skip
def test_an_error_without_an_error_body_is_still_an_api_error(body: bytes) -> None:
    run = get(*[response(502, body)] * 3)
    assert type(run.error) is ServerError
    assert (run.error.code, run.error.status) == ("unknown", 502)


@pytest.mark.parametrize("body", [b"", b"<html>Hello</html>", b"[]", b"{}", b'{"id":"1"}', b"\xff", b"[" * 200_000,
                                  b'{"id":1,"name":"Rex","categoryId":7,"status":"lost"}'])  # fmt: skip
def test_a_success_with_another_body_is_an_unexpected_response(body: bytes) -> None:
    run = get(response(200, body, x_request_id="r"))
    with pytest.raises(UnexpectedResponse) as raised:
        run.result.parse()
    assert (raised.value.code, raised.value.status, raised.value.request_id) == ("unexpected_response", 200, "r")
    assert len(run.sent) == 1, "the request must not be retried"


def test_unknown_members_of_an_animal_are_ignored() -> None:
    assert get(response(200, REX | {"colour": "brown"})).parsed == Pet(1, "Rex", 7, PetStatus.AVAILABLE)


def test_a_raw_response_has_the_status_the_headers_the_etag_and_the_request_id() -> None:
    raw = get(response(200, REX, etag='"abc"', x_request_id="r-1")).result
    assert (raw.status, raw.etag, raw.request_id) == (200, '"abc"', "r-1")
    assert raw.headers["etag"] == '"abc"'
    assert raw.content.startswith(b'{"id"')
    assert repr(raw) == "<RawResponse 200>"
    assert get(response(200, REX)).result.etag is None


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


def test_the_last_state_of_the_rate_limit_is_kept() -> None:
    clock = Clock()
    shared = operations(clock)
    assert shared.limiter.rate_limit is None
    Run(shared.fetch_pet(1), [response(200, REX, **limits(60, 59, 1794614400))], clock)
    assert shared.limiter.rate_limit == RateLimit(60, 59, 1794614400)
    Run(shared.fetch_pet(1), [error(404, "pet_not_found", **limits(60, 58, 1794614400))], clock)
    assert shared.limiter.rate_limit == RateLimit(60, 58, 1794614400)
    assert RateLimit(60, 58, 1794614400).reset_at.isoformat() == "2026-11-14T00:00:00+00:00"


@pytest.mark.parametrize("headers", [{}, limits(60, 1, 2) | {"x_ratelimit_reset": "soon"}])
def test_a_response_without_the_three_headers_does_not_change_the_rate_limit(headers: dict[str, object]) -> None:
    clock = Clock()
    shared = operations(clock)
    Run(shared.fetch_pet(1), [response(200, REX, **limits(60, 59, 5))], clock)
    Run(shared.fetch_pet(1), [response(200, REX, **headers)], clock)
    assert shared.limiter.rate_limit == RateLimit(60, 59, 5)


def test_the_headers_of_a_401_are_not_the_rate_limit_of_the_key() -> None:
    clock = Clock()
    shared = operations(clock)
    Run(shared.fetch_pet(1), [error(401, "unauthorized", **limits(600, 599, 5))], clock)
    assert shared.limiter.rate_limit is None


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
    assert next_cursor(response(200, [], link=link)) == cursor


def test_a_link_to_the_next_page_without_a_cursor_is_an_unexpected_response() -> None:
    raw = list_page(response(200, [REX], link='</v1/pets?page=2>; rel="next"')).result
    with pytest.raises(UnexpectedResponse, match="no cursor"):
        raw.parse()


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({}, "/pets?limit=100"),
        ({"status": PetStatus.SOLD, "page_size": 2}, "/pets?limit=2&status=sold"),
        ({"page_size": 2, "cursor": "a+b"}, "/pets?limit=2&cursor=a%2Bb"),
    ],
)
def test_the_arguments_of_a_list_become_its_query(arguments: dict[str, Any], path: str) -> None:
    run = list_page(LAST_PAGE, **arguments)
    assert [request.path for _, request in run.sent] == [path]
    assert run.sent[0][1].headers == {}


def test_a_page_has_its_animals_its_etag_and_the_next_cursor() -> None:
    link = '</v1/pets?limit=1&cursor=abc>; rel="next"'
    page = list_page(response(200, [REX, REX | {"id": 2}], link=link, etag='"v1"')).parsed
    assert [pet.id for pet in page] == [pet.id for pet in page.pets] == [1, 2]
    assert (len(page), page.next_cursor, page.etag, page.not_modified) == (2, "abc", '"v1"', False)
    assert page.to_dict()["pets"][0] == REX


def test_a_304_returns_the_given_page_as_not_modified() -> None:
    known = Page((Pet(1, "Rex", 7, PetStatus.SOLD),), "abc", '"v1"')
    run = list_page(response(304, b"", etag='"v1"'), if_none_match=known)
    assert run.sent[0][1].headers == {"if-none-match": '"v1"'}
    assert run.parsed == Page(known.pets, "abc", '"v1"', not_modified=True)


def test_a_304_for_an_etag_alone_has_no_animals_and_leads_to_the_next_page() -> None:
    link = '</v1/pets?limit=2&cursor=abc>; rel="next"'
    assert list_page(response(304, b"", link=link), if_none_match='"v1"').parsed == Page(
        (), "abc", '"v1"', not_modified=True
    )
    run = list_page(response(304, b""), if_none_match='"v1"')
    assert run.sent[0][1].headers == {"if-none-match": '"v1"'}
    assert run.parsed == Page((), None, '"v1"', not_modified=True)


def test_a_modified_page_replaces_the_given_one() -> None:
    page = list_page(response(200, [REX], etag='"v2"'), if_none_match='"v1"').parsed
    assert (len(page), page.etag, page.not_modified) == (1, '"v2"', False)


def test_a_page_without_an_etag_makes_no_condition() -> None:
    assert list_page(LAST_PAGE, if_none_match=Page(())).sent[0][1].headers == {}


def test_a_304_that_was_not_asked_for_is_an_unexpected_response() -> None:
    with pytest.raises(UnexpectedResponse):
        list_page(response(304, b"")).result.parse()


@pytest.mark.parametrize("bad", ['"a b"', '"a\nb"', "é"])
def test_an_etag_that_no_header_can_carry_is_a_value_error(bad: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        list_page(LAST_PAGE, if_none_match=bad)


def test_models_become_dictionaries_and_json_with_the_names_of_the_interface() -> None:
    rex = Pet(1, "Rex", 7, PetStatus.AVAILABLE)
    assert rex.to_dict() == REX
    assert type(rex.to_dict()["status"]) is str
    assert rex.to_json() == '{"id":1,"name":"Rex","categoryId":7,"status":"available"}'
    assert Page((rex,), "abc").to_dict() == {"pets": [REX], "nextCursor": "abc", "etag": None, "notModified": False}
    assert RateLimit(60, 59, 5).to_dict() == {"limit": 60, "remaining": 59, "reset": 5}


def test_each_attempt_is_reported_once_with_its_outcome() -> None:
    attempts: list[Attempt] = []
    outcomes: list[Response | Failure] = [
        error(503, "unavailable", retry_after=2, x_request_id="a"),
        Failure(OSError(), "no"),
        response(200, REX),
    ]
    get(*outcomes, events=Events(on_attempt=attempts.append))
    assert attempts == [
        Attempt("GET", "/pets/1", 1, 3, 0.0, 503, "unavailable", "a", 2.25),
        Attempt("GET", "/pets/1", 2, 3, 0.0, None, "connection_failed", None, 0.75),
        Attempt("GET", "/pets/1", 3, 3, 0.0, 200, None, None, None),
    ]


def test_an_attempt_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "petstore_client")
    events = Events()
    events.attempt(Attempt("GET", "/pets/1", 1, 3, 0.0123, 429, "rate_limit_exceeded", "r-1", 41.0))
    events.attempt(Attempt("GET", "/pets/1", 2, 3, 5.0, None, "timed_out", None, None))
    events.attempt(Attempt("GET", "/pets/1", 2, 3, 0.001, 200, None, "r-2", None))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            "GET /pets/1: 429 rate_limit_exceeded in 0.012 s, attempt 1 of 3, retrying in 41.00 s, request r-1",
        ),
        ("INFO", "GET /pets/1: no response timed_out in 5.000 s, attempt 2 of 3"),
        ("DEBUG", "GET /pets/1: 200 in 0.001 s, attempt 2 of 3, request r-2"),
    ]
    caplog.set_level(logging.WARNING, "petstore_client")
    events.attempt(Attempt("GET", "/pets/1", 1, 3, 0.0, 200, None, None, None))
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
    Events().attempt(Attempt("GET", "/pets", 1, 3, 0.0, 418, "a\n\u202eb", "r\x9b", None))
    assert caplog.messages == ["GET /pets: 418 a\\u000a\\u202eb in 0.000 s, attempt 1 of 3, request r\\u009b"]


def test_a_new_animal_is_sent_with_a_status_only_if_one_is_given() -> None:
    clock = Clock()
    bodies = []
    statuses: list[Status | None] = [None, PetStatus.SOLD, "pending"]
    for status in statuses:
        run = Run(operations(clock).create_pet("Rex", 7, status=status), [response(201, REX)], clock)
        bodies += [request.body for _, request in run.sent]
    assert bodies == [
        b'{"name":"Rex","categoryId":7}',
        b'{"name":"Rex","categoryId":7,"status":"sold"}',
        b'{"name":"Rex","categoryId":7,"status":"pending"}',
    ]


def test_a_created_animal_without_a_location_is_returned() -> None:
    """As of 5 December 2030, a 201 has no `Location`."""
    clock = Clock()
    assert Run(operations(clock).create_pet("Rex", 7), [response(201, REX)], clock).parsed.id == 1


def test_get_pet_of_the_raw_operations_warns() -> None:
    clock = Clock()
    with pytest.warns(DeprecationWarning, match="5 December 2030"):
        call = operations(clock).get_pet(1)
    assert Run(call, [response(200, REX)], clock).parsed.name == "Rex"


def test_iterating_follows_the_cursors_and_skips_empty_pages() -> None:
    clock = Clock()
    pets = operations(clock).iterate("available", None, 2, None, Page((), etag='"v1"'))
    pages = [
        response(200, [REX, REX], link='</v1/pets?cursor=a>; rel="next"'),
        response(200, [], link='</v1/pets?cursor=b>; rel="next"'),
        response(200, [REX]),
    ]
    runs = [Run(pets.__anext__(), fetched, clock) for fetched in (pages[:1], [], pages[1:])]
    assert [run.result.id for run in runs] == [1, 1, 1]
    with pytest.raises(StopAsyncIteration):
        Run(pets.__anext__(), [], clock)
    requests = [request for run in runs for _, request in run.sent]
    assert [(request.path, dict(request.headers)) for request in requests] == [
        ("/pets?limit=2&status=available", {"if-none-match": '"v1"'}),
        ("/pets?limit=2&status=available&cursor=a", {}),
        ("/pets?limit=2&status=available&cursor=b", {}),
    ]


def test_iterating_requests_the_same_page_again_after_an_error() -> None:
    clock = Clock()
    pages = operations(clock).iterate(None, None, 100, "a", None).pages()
    broken = Run(pages.__anext__(), [error(410, "gone")], clock)
    again = Run(pages.__anext__(), [LAST_PAGE], clock)
    assert broken.error is not None
    assert [request.path for _, request in broken.sent + again.sent] == ["/pets?limit=100&cursor=a"] * 2


def test_iterators_and_pages_show_where_they_are() -> None:
    clock = Clock()
    pets = operations(clock).iterate("sold", None, 2, None, None)
    pages = pets.pages()
    shown = [repr(pets), repr(pages)]
    linked = response(200, [REX], link='</v1/pets?cursor=a>; rel="next"')
    for page in (linked, LAST_PAGE):
        shown += [repr(Run(pages.__anext__(), [page], clock).result), repr(pages)]
    assert shown == [
        "<AsyncPetIterator /pets?limit=2&status=sold>",
        "<AsyncPageIterator /pets?limit=2&status=sold, next: the first page>",
        "<Page len=1 next_cursor='a' not_modified=False>",
        "<AsyncPageIterator /pets?limit=2&status=sold, next: cursor 'a'>",
        "<Page len=1 next_cursor=None not_modified=False>",
        "<AsyncPageIterator /pets?limit=2&status=sold, at the end>",
    ]


def test_a_pet_not_found_is_also_a_not_found() -> None:
    assert issubclass(PetNotFound, petstore_client.NotFound)
