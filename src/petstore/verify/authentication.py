"""Authentication: a request without a valid key is rejected."""

from petstore.verify.findings import Findings, expect, expect_error
from petstore.verify.session import Session

UNKNOWN = "Authorization: Bearer verify-is-not-a-key"
CHALLENGE = 'Bearer realm="petstore"'


def missing_key(session: Session) -> Findings:
    """A request without an API key is rejected with 401 and an `Error` body."""
    for line in ("GET /pets", "GET /pets/1"):
        yield from expect_error(session.send(line, key=""), 401)
    yield from expect_error(session.send("POST /pets", body=b"", key=""), 401)


def unknown_key(session: Session) -> Findings:
    """A request with an unknown API key is rejected with 401 and an `Error` body."""
    yield from expect_error(session.send("GET /pets", UNKNOWN, key=""), 401)


def other_scheme(session: Session) -> Findings:
    """A request that sends an API key with a scheme other than `Bearer` is rejected with 401."""
    response = session.send("GET /pets", f"Authorization: Basic {session.key}", key="")
    yield from expect_error(response, 401)


def challenge(session: Session) -> Findings:
    """A 401 has the code `unauthorized`, and its `WWW-Authenticate` header shows whether a credential was sent."""
    for headers, expected in (((), CHALLENGE), ((UNKNOWN,), f'{CHALLENGE}, error="invalid_token"')):
        response = session.send("GET /pets", *headers, key="")
        yield from expect_error(response, 401, "unauthorized")
        right = response.values("www-authenticate") == [expected]
        yield from expect(right, f"`WWW-Authenticate: {expected}`", response)


def two_keys(session: Session) -> Findings:
    """A request with two `Authorization` headers is rejected."""
    line = "GET /pets?limit=1"
    with session.connect() as connection:
        connection.write(session.message(line, f"Authorization: Bearer {session.key}"))
        response = session.read_rejection(connection, line)
    by_proxy = response.status == 400 and not response.values("x-request-id")
    if not by_proxy:
        yield from expect_error(response, 401, "unauthorized", "a proxy dropped one of two `Authorization` headers")
