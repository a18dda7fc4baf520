"""Promises about every response. These checks send no requests; they examine the responses to the other checks."""

from collections.abc import Iterator

from petstore.verify.findings import Findings, expect, is_error, unexpected
from petstore.verify.responses import Response
from petstore.verify.session import Session

RATE_LIMIT = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
DAY = 86_400
CLOCK_MAX = 60  # how far off this machine's clock may be, in seconds


def _errors(session: Session) -> Iterator[Response]:
    return (each for each in session.received if each.status >= 400 and not each.request.startswith("HEAD "))


def rate_limit_headers(session: Session) -> Findings:
    """Every response includes numeric `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` headers."""
    nowhere = not any(response.values(name) for response in session.received for name in RATE_LIMIT)
    for response in session.received:
        others = any(response.values(name) for name in RATE_LIMIT) or (nowhere and response.values("x-request-id"))
        for name in RATE_LIMIT:
            values = response.values(name)
            yield from expect(bool(values), f"`{name}`", response, f"a proxy removed `{name}`" if others else "")
            yield from expect(all(map(str.isdigit, values)), f"`{name}` with a number, not {values}", response)


def rate_limit_values(session: Session) -> Findings:
    """`X-RateLimit-Remaining` is at most `X-RateLimit-Limit`. `X-RateLimit-Reset` is at most a day in the future."""
    for response in session.received:
        limit, left, reset = (response.number(name) for name in RATE_LIMIT)
        if limit is not None and left is not None:
            yield from expect(left <= limit, f"at most {limit} remaining, not {left},", response)
        if reset is not None:
            soon = -CLOCK_MAX <= reset - response.received <= DAY + CLOCK_MAX
            yield from expect(soon, f"`X-RateLimit-Reset` within a day, not {reset},", response)


def rate_limit_headers_once(session: Session) -> Findings:
    """Every response includes each rate limit header exactly once."""
    for response in session.received:
        for name in RATE_LIMIT:
            values = response.values(name)
            cause = f"a proxy added a second `{name}`"
            yield from expect(len(values) < 2, f"one `{name}`, not {' and '.join(values)},", response, cause)


def error_bodies(session: Session) -> Findings:
    """Every 400, 401 and 404 response has an `Error` body with `code`, `message` and the HTTP `status`."""
    for response in _errors(session):
        if response.status in (400, 401, 404):
            yield from expect(is_error(response), "an Error body", response)


def errors_exactly(session: Session) -> Findings:
    """Every error body is `application/json` and contains exactly the members `code`, `message` and `status`."""
    for response in _errors(session):
        right = is_error(response) and list(response.json) == ["code", "message", "status"]
        kind = response.values("content-type") == ["application/json"]
        yield from expect(right and kind, "an Error body as application/json", response)


def request_ids(session: Session) -> Findings:
    """Every response includes a unique `X-Request-Id`."""
    seen: set[str] = set()
    for response in session.received:
        ids = response.values("x-request-id")
        yield from expect(
            len(ids) == 1, "one `X-Request-Id`", response, "" if ids else "a proxy removed `X-Request-Id`"
        )
        if seen.intersection(ids):
            yield unexpected("a new `X-Request-Id`", response, "a cache answered: this `X-Request-Id` was sent before")
        seen.update(ids)


def cache_control(session: Session) -> Findings:
    """Lists and animals are sent with `Cache-Control: private, no-cache`, and all other responses with `no-store`."""
    for response in session.received:
        kept = response.status in (200, 304)
        expected = "private, no-cache" if kept else "no-store"
        right = response.values("cache-control") == [expected]
        yield from expect(right, f"`Cache-Control: {expected}`", response, "a proxy changed `Cache-Control`")
        if kept:
            varying = ", ".join(response.values("vary")).lower()
            yield from expect("authorization" in varying, "`Vary: Authorization`", response, "a proxy changed `Vary`")
