"""Rate limits: which requests count and, with a second key that has a low limit, whether the limit is exact."""

from itertools import pairwise
from typing import NamedTuple

from petstore.verify.findings import Finding, Findings, Skip, expect, expect_error, unexpected
from petstore.verify.responses import Response
from petstore.verify.session import Session

LINE = "GET /pets?limit=1"
LIMIT_MIN, LIMIT_MAX = 10, 200  # per-minute limits allowed for --limit-key; a key with a lower limit might be banned
BEYOND = 5  # requests to send beyond the limit
CLOCKS_MAX = 5  # how far the `Date` header may differ from the gate's clock, in seconds
OTHER_GATE = "the addresses do not share a gate; they use different Redis servers (--gate)"
OTHER_CLIENT = "another client uses this key, or a proxy retries requests"


def expect_counted(before: Response, after: Response, count: int, cause: str) -> Findings:
    """Checks that `count` requests were counted between two responses. Does nothing if the window has changed."""
    for name in ("x-ratelimit-limit", "x-ratelimit-reset"):
        if before.value(name) != after.value(name):
            return
    left, now_left = (each.number("x-ratelimit-remaining") for each in (before, after))
    if left is not None and now_left != left - count:
        yield unexpected(f"`X-RateLimit-Remaining: {left - count}`, not {now_left},", after, cause)


def every_request_counts(session: Session) -> Findings:
    """Every request with a valid key counts once, regardless of the response."""
    sent = [(LINE,), (LINE, "If-None-Match: *"), ("GET /pets?limit=0",), ("GET /verify",), ("HEAD /pets",)]
    for before, after in pairwise([session.send(*each) for each in sent]):
        yield from expect_counted(before, after, 1, OTHER_CLIENT)


# With --limit-key


def _send(session: Session) -> Response:
    return session.send(LINE, key=session.limit_key)


def _wait(session: Session, refused: Response) -> None:
    """Waits for the number of seconds in `Retry-After`. Raises Skip if there is no number or it is too high."""
    seconds = refused.number("retry-after")
    if seconds is None:
        raise Skip("`Retry-After` is not a number of seconds")
    session.wait(seconds)


class Burst(NamedTuple):
    """The responses to a burst of parallel requests that exceeds the limit."""

    admissible: int
    responses: list[Response]
    in_one_window: bool


def _burst(session: Session) -> Burst:
    """Sends more parallel requests than the limit allows. Raises Skip if the key's limit is not suitable."""
    first = _send(session)
    if first.status == 429:
        _wait(session, first)
        first = _send(session)
    left, limit, reset = (first.number(f"x-ratelimit-{name}") for name in ("remaining", "limit", "reset"))
    if left is None or limit is None or reset is None or not LIMIT_MIN <= limit <= LIMIT_MAX:
        raise Skip(
            f"the key for --limit-key has a limit of {limit}; use a key with a limit from {LIMIT_MIN} to {LIMIT_MAX}"
        )
    left = min(left, limit)
    responses = session.send_at_once(left + BEYOND, LINE, key=session.limit_key)
    return Burst(left, responses, max(each.date for each in responses) < reset - 1)


def exact(session: Session) -> Findings:
    """When parallel requests through all addresses exceed the limit, exactly the allowed number is admitted."""
    burst = _burst(session)
    if not burst.in_one_window:
        burst = _burst(session)
    admitted = sum(each.status == 200 for each in burst.responses)
    if admitted != burst.admissible:
        cause = OTHER_GATE if admitted > burst.admissible else OTHER_CLIENT
        expected = f"{burst.admissible} of {len(burst.responses)} parallel requests admitted"
        yield Finding(expected, f"{admitted} admitted", None, cause)
    for response in burst.responses:
        yield from expect(response.status in (200, 429), "200 or 429", response)


def most_requests(limit: int) -> int:
    """Returns the maximum number of requests that these checks send with --limit-key, given the key's limit."""
    return 2 * (min(limit, LIMIT_MAX) + BEYOND) + 10


def _refused(session: Session) -> Response:
    """Returns the response to a request that exceeds the limit. Raises Skip if the key's limit is not suitable."""
    response = _send(session)
    if response.status == 200:
        response = next((each for each in _burst(session).responses if each.status == 429), response)
    return response


def refusal(session: Session) -> Findings:
    """A request that exceeds the limit returns 429 with `Retry-After`."""
    response = _refused(session)
    yield from expect(response.status == 429, "429", response)
    yield from expect(bool(response.value("retry-after")), "`Retry-After`", response, "a proxy removed `Retry-After`")


def refusal_headers(session: Session) -> Findings:
    """A 429 has the code `rate_limit_exceeded`, `X-RateLimit-Remaining: 0` and a `Reset` that matches `Retry-After`."""
    response = _refused(session)
    yield from expect_error(response, 429, "rate_limit_exceeded")
    yield from expect(response.number("x-ratelimit-remaining") == 0, "`X-RateLimit-Remaining: 0`", response)
    now = (response.number("x-ratelimit-reset") or 0) - (response.number("retry-after") or 0)
    right, cause = abs(now - response.date) <= CLOCKS_MAX, "the clocks of the node and Redis differ"
    yield from expect(right, "an `X-RateLimit-Reset` that matches `Retry-After`", response, cause)


def retry_after(session: Session) -> Findings:
    """After the number of seconds in `Retry-After`, the next request is admitted."""
    response = _refused(session)
    _wait(session, response)
    after = _send(session)
    yield from expect(after.status == 200, f"200 after {response.value('retry-after')} s", after)
