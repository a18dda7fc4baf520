"""The likely cause of a finding, from the headers and the body of its response."""

import pytest

from petstore.verify.causes import likely_cause
from petstore.verify.findings import Finding
from petstore.verify.responses import Response

BASE_URL = "https://staging.example.com/v1"


def cause_of(headers: list[tuple[str, str]], body: bytes = b"[]", suspected: str = "") -> str:
    response = Response("GET /pets", BASE_URL, 0.0, 0.1, 200, tuple(headers), body)
    return likely_cause(Finding("a list", "another", response, suspected))


@pytest.mark.parametrize(
    ("headers", "cause"),
    [
        ([("age", "12")], "a cache answered: `Age: 12`"),
        ([("x-cache", "HIT from edge")], "a cache answered: `x-cache: HIT from edge`"),
        ([("x-cache", "MISS"), ("via", "1.1 varnish")], "a proxy is involved: `Via: 1.1 varnish`"),
        ([("server", "nginx")], "a proxy, or a server other than Petstore: `Server: nginx`"),
        ([("content-encoding", "br"), ("server", "nginx")], "a proxy compresses responses: `Content-Encoding: br`"),
        ([("etag", 'W/"1"')], 'a proxy weakened the tag: `ETag: W/"1"`'),
        ([("x-request-id", "1"), ("x-request-id", "2")], "a proxy added a second `x-request-id`"),
        ([("link", "<a>"), ("link", "<b>")], ""),
    ],
)
def test_a_header_reveals_the_cause(headers: list[tuple[str, str]], cause: str) -> None:
    assert cause_of(headers) == cause


def test_what_a_check_suspects_comes_after_who_answered_and_before_everything_else() -> None:
    assert cause_of([("age", "1")], suspected="a stale page") == "a cache answered: `Age: 1`"
    assert cause_of([("via", "1.1 a")], b"<html>", suspected="a stale page") == "a proxy answered with HTML"
    assert cause_of([("via", "1.1 a")], suspected="a stale page") == "a stale page"
