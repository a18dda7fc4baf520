"""What an answer means: errors by code, the state of the limit, links, bodies that are not what they should be."""

import logging
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import petstore_client
from fakes import REX, Clock, Run, answer, core, error, limits
from petstore_client import (
    ApiError,
    ConnectionFailed,
    InvalidRequest,
    KeyBanned,
    Pet,
    PetNotFound,
    PetStatus,
    PetstoreError,
    RateLimit,
    RateLimited,
    RequestTimeout,
    ServerError,
    Status,
    Try,
    UnexpectedAnswer,
    _errors,
)
from petstore_client._answers import next_query
from petstore_client._core import Walk
from petstore_client._errors import CLASSES, api_error
from petstore_client._steps import Answer, Failure
from petstore_client._tries import log_try

API = (Path(__file__).parents[2] / "docs/api.md").read_text()


def get(*outcomes: Answer | Failure, **more: Any) -> Run:
    clock = Clock()
    return Run(core(clock, **more).get_pet(1), outcomes, clock)


def test_every_documented_code_has_its_class_and_no_other() -> None:
    assert set(CLASSES) == set(re.findall(r"^\| `([a-z_]+)` \| \d{3} \|", API, re.MULTILINE))


@pytest.mark.parametrize(("code", "status"), re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", API, re.MULTILINE))
def test_every_documented_code_arrives_as_its_class(code: str, status: str) -> None:
    run = get(*[error(int(status), code, x_request_id="r-1")] * 3)
    assert type(run.error) is CLASSES[code]
    assert (run.error.code, run.error.message) == (code, f"It is {code}.")
    assert (run.error.status, run.error.request_id) == (int(status), "r-1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(418, ApiError), (302, ApiError), (409, ApiError), (408, RequestTimeout), (429, RateLimited), (599, ServerError)],
)
def test_an_unknown_code_still_arrives_as_an_api_error(status: int, kind: type[ApiError]) -> None:
    run = get(*[error(status, "a_code_of_the_future")] * 3)
    assert type(run.error) is kind
    assert (run.error.code, run.error.status) == ("a_code_of_the_future", status)


@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"[]", b'{"code": 5}', b'{"code":"\xff"}',
                                  b'{"code":"a","message":"b","x":' + b"[" * 100_000])  # fmt: skip
def test_an_error_without_a_body_of_the_interface_is_still_an_api_error(body: bytes) -> None:
    run = get(*[answer(502, body)] * 3)
    assert type(run.error) is ServerError
    assert (run.error.code, run.error.status) == ("unknown", 502)


@pytest.mark.parametrize("body", [b"", b"<html>Hello</html>", b"[]", b"{}", b'{"id":"1"}', b"\xff", b"[" * 200_000,
                                  b'{"id":1,"name":"Rex","categoryId":7,"status":"lost"}'])  # fmt: skip
def test_a_success_that_is_not_the_interfaces_is_an_unexpected_answer_and_not_retried(body: bytes) -> None:
    run = get(answer(200, body, x_request_id="r"))
    assert isinstance(run.error, UnexpectedAnswer)
    assert (run.error.code, run.error.status, run.error.request_id) == ("unexpected_answer", 200, "r")


def test_members_that_a_later_version_adds_are_ignored() -> None:
    assert get(answer(200, REX | {"colour": "brown"})).result == Pet(1, "Rex", 7, PetStatus.AVAILABLE)


def test_the_tree_is_drawn_as_it_is() -> None:
    """The picture in the module's docstring is the documentation of the tree, so it has to be true."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for indent, name in re.findall(r"^([│├└─ ]*)([A-Z]\w+)(?:\s|$)", str(_errors.__doc__), re.MULTILINE)[1:]:
        depth = len(indent) // 4
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else ""
    classes = [c for c in vars(_errors).values() if isinstance(c, type) and issubclass(c, PetstoreError)]
    assert drawn == {c.__name__: c.__base__.__name__ if c is not PetstoreError else "" for c in classes if c.__base__}
    assert {c.__name__ for c in classes} <= set(petstore_client.__all__)


def test_an_error_tells_what_it_knows_and_survives_the_way_between_processes() -> None:
    raised = api_error("key_banned", "Wait.", 429, "r-1", 60.0, RateLimit(60, 0, 1794614400))
    copy = pickle.loads(pickle.dumps(raised))
    for known in (raised, copy):
        assert isinstance(known, KeyBanned)
        assert repr(known) == "<KeyBanned: Wait. (key_banned, status 429, request r-1)>"
        assert (known.retry_after, known.limit, known.reset) == (60.0, 60, 1794614400)
    assert str(ConnectionFailed("Nobody there", code="connection_failed")) == "Nobody there (connection_failed)"


def test_errors_that_do_not_know_the_limit_say_none() -> None:
    raised = api_error("rate_limit_exceeded", "Wait.", 429)
    assert isinstance(raised, RateLimited)
    assert raised.retry_after is raised.limit is raised.remaining is raised.reset is None
    assert InvalidRequest("no", code="invalid_body", status=400).retry_after is None


def test_the_last_seen_state_of_the_limit_is_kept() -> None:
    clock = Clock()
    shared = core(clock)
    assert shared.pace.rate_limit is None
    Run(shared.get_pet(1), [answer(200, REX, **limits(60, 59, 1794614400))], clock)
    assert shared.pace.rate_limit == RateLimit(60, 59, 1794614400)
    Run(shared.get_pet(1), [error(404, "pet_not_found", **limits(60, 58, 1794614400))], clock)
    assert shared.pace.rate_limit == RateLimit(60, 58, 1794614400)
    assert RateLimit(60, 58, 1794614400).reset_at.isoformat() == "2026-11-14T00:00:00+00:00"


@pytest.mark.parametrize("headers", [{}, limits(60, 1, 2) | {"x_ratelimit_reset": "soon"}])
def test_an_answer_without_the_three_headers_leaves_it(headers: dict[str, object]) -> None:
    clock = Clock()
    shared = core(clock)
    Run(shared.get_pet(1), [answer(200, REX, **limits(60, 59, 5))], clock)
    Run(shared.get_pet(1), [answer(200, REX, **headers)], clock)
    assert shared.pace.rate_limit == RateLimit(60, 59, 5)


def test_a_401_speaks_of_the_address_and_not_of_the_key() -> None:
    clock = Clock()
    shared = core(clock)
    Run(shared.get_pet(1), [error(401, "unauthorized", **limits(600, 599, 5))], clock)
    assert shared.pace.rate_limit is None


@pytest.mark.parametrize(
    ("link", "query"),
    [
        ('</v1/pets?limit=2&cursor=abc>; rel="next"', "limit=2&cursor=abc"),
        ('<https://elsewhere.example/v1/pets?cursor=abc>; rel="next"', "cursor=abc"),
        ('</docs>; rel="help", </v1/pets?cursor=abc>; title="a, b"; rel=next', "cursor=abc"),
        ('</v1/pets?cursor=abc>; REL="last Next"', "cursor=abc"),
        ('</v1/pets>; rel="successor-version", </docs>; rel="deprecation"', None),
        ('</v1/pets?cursor=abc>; rel="prev"', None),
        ("</v1/pets?cursor=abc>", None),
        ("", None),
    ],
)
def test_the_next_page_is_found_among_any_links(link: str, query: str | None) -> None:
    assert next_query(answer(200, [], link=link)) == query


def test_a_walk_follows_the_links_skips_empty_pages_and_stays_at_its_end() -> None:
    clock = Clock()
    walk = Walk(core(clock), PetStatus.AVAILABLE, 2)
    pages = [
        answer(200, [REX, REX], link='</v1/pets?a=1>; rel="next"'),
        answer(200, [], link='</v1/pets?a=2>; rel="next"'),
        answer(200, [REX]),
    ]
    first = Run(walk.next_page(), pages[:1], clock)
    second = Run(walk.next_page(), pages[1:], clock)
    third = Run(walk.next_page(), [], clock)
    assert [len(run.result) for run in (first, second, third)] == [2, 1, 0]
    assert [sent.path for run in (first, second, third) for _, sent in run.sent] == [
        "/pets?limit=2&status=available",
        "/pets?a=1",
        "/pets?a=2",
    ]


def test_a_walk_keeps_its_place_when_a_page_fails() -> None:
    clock = Clock()
    walk = Walk(core(clock), None, 100)
    broken = Run(walk.next_page(), [error(410, "gone")], clock)
    again = Run(walk.next_page(), [answer(200, [REX])], clock)
    assert broken.error is not None
    assert [sent.path for _, sent in broken.sent + again.sent] == ["/pets?limit=100"] * 2


def test_each_try_is_told_once_with_its_outcome() -> None:
    told: list[Try] = []
    outcomes: list[Answer | Failure] = [
        error(503, "unavailable", retry_after=2, x_request_id="a"),
        Failure(OSError(), "no"),
        answer(200, REX),
    ]
    get(*outcomes, report=told.append)
    assert told == [
        Try("GET", "/pets/1", 1, 3, 0.0, 503, "unavailable", "a", 2.0),
        Try("GET", "/pets/1", 2, 3, 0.0, None, "connection_failed", None, 0.75),
        Try("GET", "/pets/1", 3, 3, 0.0, 200, None, None, None),
    ]


def test_a_try_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "petstore_client")
    log_try(Try("GET", "/pets/1", 1, 3, 0.0123, 429, "rate_limit_exceeded", "r-1", 41.0))
    log_try(Try("GET", "/pets/1", 2, 3, 5.0, None, "timed_out", None, None))
    log_try(Try("GET", "/pets/1", 2, 3, 0.001, 200, None, "r-2", None))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            "GET /pets/1: 429 rate_limit_exceeded in 0.012 s, try 1 of 3, again in 41.00 s, request r-1",
        ),
        ("INFO", "GET /pets/1: no answer timed_out in 5.000 s, try 2 of 3"),
        ("DEBUG", "GET /pets/1: 200 in 0.001 s, try 2 of 3, request r-2"),
    ]
    caplog.set_level(logging.WARNING, "petstore_client")
    log_try(Try("GET", "/pets/1", 1, 3, 0.0, 200, None, None, None))
    assert len(caplog.records) == 3


def test_a_new_animal_carries_its_status_only_if_one_was_given() -> None:
    clock = Clock()
    bodies = []
    statuses: list[Status | None] = [None, PetStatus.SOLD, "pending"]
    for status in statuses:
        run = Run(core(clock).create_pet("Rex", 7, status, "k"), [answer(201, REX)], clock)
        bodies += [sent.body for _, sent in run.sent]
    assert bodies == [
        b'{"name":"Rex","categoryId":7}',
        b'{"name":"Rex","categoryId":7,"status":"sold"}',
        b'{"name":"Rex","categoryId":7,"status":"pending"}',
    ]


def test_a_pet_not_found_is_also_a_not_found() -> None:
    assert issubclass(PetNotFound, petstore_client.NotFound)
