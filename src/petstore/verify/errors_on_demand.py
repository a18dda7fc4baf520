"""Errors on demand: on staging, a client can request any error with the `Prefer` header."""

import secrets

from petstore.errors import STATUS_OF_CODE
from petstore.verify.findings import Findings, expect, expect_error, expect_status
from petstore.verify.session import Session, new_pet
from petstore.verify.transport import Response

CODES = [code for code in STATUS_OF_CODE if code != "malformed_request"]


def _expect_applied(response: Response, applied: str) -> Findings:
    cause = "a proxy removed `Prefer` or `Preference-Applied`"
    right = response.value("preference-applied") == applied
    yield from expect(right, f"`Preference-Applied: {applied}`", response, cause)
    varying = {name.strip().lower() for value in response.values("vary") for name in value.split(",")}
    yield from expect("prefer" in varying, "`Vary: Prefer`", response)


def each_code(session: Session) -> Findings:
    """For every error code except `malformed_request`, `Prefer: error=CODE` returns the error with that code."""
    for code in CODES:
        response = session.send("GET /pets", f"Prefer: error={code}")
        yield from expect_error(response, STATUS_OF_CODE[code], code, "a proxy removed `Prefer`")
        yield from _expect_applied(response, f"error={code}")


def retry_after(session: Session) -> Findings:
    """A simulated 429 includes `X-RateLimit-Remaining: 0` and the requested `Retry-After`."""
    response = session.send("GET /pets", "Prefer: code=429", "Prefer: retry-after=7")
    yield from expect_error(response, 429, "rate_limit_exceeded")
    yield from expect(response.number("retry-after") == 7, "`Retry-After: 7`", response)
    yield from expect(response.number("x-ratelimit-remaining") == 0, "`X-RateLimit-Remaining: 0`", response)
    yield from _expect_applied(response, "error=rate_limit_exceeded, retry-after=7")


def delay(session: Session) -> Findings:
    """`Prefer: delay=1` delays the response by one second."""
    response = session.send("GET /pets?limit=1", "Prefer: delay=1")
    yield from expect_status(response, 200)
    yield from expect(
        response.seconds > 0.9, f"a response after a second, not after {response.seconds:.2f} s", response
    )
    yield from _expect_applied(response, "delay=1")


def nothing_done(session: Session) -> Findings:
    """A create request that gets a simulated error does not add an animal or use up its idempotency key."""
    header, body = f"Idempotency-Key: verify-{secrets.token_hex(8)}", new_pet()
    yield from expect_error(session.post(body, header, "Prefer: error=unavailable"), 503, "unavailable")
    response = session.post(body, header)
    fresh = response.status == 201 and not response.values("idempotent-replayed")
    yield from expect(fresh, "201 without `Idempotent-Replayed`", response)


def only_with_key(session: Session) -> Findings:
    """Without an API key, `Prefer` has no effect."""
    response = session.send("GET /pets", "Prefer: error=gone", key="")
    yield from expect_error(response, 401, "unauthorized")
    yield from expect(not response.values("preference-applied"), "no `Preference-Applied`", response)
