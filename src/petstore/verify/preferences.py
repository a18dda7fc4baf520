"""Preferences in the `Prefer` header: strict handling and, on staging, errors on demand."""

from petstore.errors import STATUS_OF_CODE
from petstore.verify.findings import Findings, expect, expect_error, expect_status
from petstore.verify.responses import Response
from petstore.verify.session import Session

CODES = [code for code in STATUS_OF_CODE if code != "malformed_request"]


def _expect_applied(response: Response, applied: str) -> Findings:
    cause = "a proxy removed `Prefer` or `Preference-Applied`"
    right = response.value("preference-applied") == applied
    yield from expect(right, f"`Preference-Applied: {applied}`", response, cause)
    varying = {name.strip().lower() for value in response.values("vary") for name in value.split(",")}
    yield from expect("prefer" in varying, "`Vary: Prefer`", response)


def strict_handling(session: Session) -> Findings:
    """With `Prefer: handling=strict`, an unknown parameter is rejected with 400 `invalid_parameter`."""
    known, unknown = (session.send(f"GET /pets?limit=1{more}", "Prefer: handling=strict") for more in ("", "&verify=1"))
    yield from expect_status(known, 200)
    yield from expect_error(unknown, 400, "invalid_parameter", "a proxy removed `Prefer`")
    for response in (known, unknown):
        yield from _expect_applied(response, "handling=strict")


def error_on_demand(session: Session) -> Findings:
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
