"""Strict handling: with `Prefer: handling=strict`, unknown parameters and members are rejected instead of ignored."""

from petstore.verify.findings import Findings, expect, expect_error, expect_status
from petstore.verify.session import Session
from petstore.verify.transport import Response

STRICT = "Prefer: handling=strict"


def _expect_confirmed(response: Response) -> Findings:
    cause = "a proxy removed `Prefer` or `Preference-Applied`"
    confirmed = response.value("preference-applied") == "handling=strict"
    yield from expect(confirmed, "`Preference-Applied: handling=strict`", response, cause)
    yield from expect("prefer" in ", ".join(response.values("vary")).lower(), "`Vary: Prefer`", response)


def parameters(session: Session) -> Findings:
    """With `Prefer: handling=strict`, an unknown parameter is rejected with a 400 `invalid_parameter` that names it."""
    known, unknown = (session.send(f"GET /pets?limit=1{more}", STRICT) for more in ("", "&verify=1"))
    yield from expect_status(known, 200)
    yield from _expect_confirmed(known)
    yield from expect_error(unknown, 400, "invalid_parameter", "a proxy removed `Prefer`")
    yield from expect("verify" in unknown.message, "a message that names verify", unknown)
    yield from _expect_confirmed(unknown)


def members(session: Session) -> Findings:
    """With `Prefer: handling=strict`, an unknown member is rejected with a 400 `invalid_body` that names it."""
    response = session.add(STRICT, unknown=1)
    yield from expect_error(response, 400, "invalid_body", "a proxy removed `Prefer`")
    yield from expect("unknown" in response.message, "a message that names the member", response)
    yield from _expect_confirmed(response)
