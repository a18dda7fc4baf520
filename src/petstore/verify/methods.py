"""HTTP methods other than those of the operations."""

from petstore.operations import OPERATIONS, allowed_methods
from petstore.verify.findings import Findings, expect, expect_error, expect_status
from petstore.verify.responses import Response
from petstore.verify.session import Session

# Headers that may differ between GET and HEAD.
VARYING = {"date", "x-request-id", "x-ratelimit-remaining", "x-ratelimit-reset", "connection", "keep-alive",
           "transfer-encoding", "content-length", "age"}  # fmt: skip


def head(session: Session) -> Findings:
    """`HEAD` returns the same status and headers as `GET`, but no body."""
    for path in ("/pets?limit=1", "/pets/0"):
        get, response = session.send(f"GET {path}"), session.send(f"HEAD {path}")
        yield from expect_status(response, get.status)
        missing = sorted(_steady(get) - _steady(response))
        yield from expect(not missing, f"the headers of GET; missing: {missing}", response)


def _steady(response: Response) -> set[tuple[str, str]]:
    return {(name, value) for name, value in response.headers if name not in VARYING}


def options(session: Session) -> Findings:
    """`OPTIONS` returns 204 with an `Allow` header and does not require a key."""
    response = session.send("OPTIONS /pets", key="")
    yield from expect_status(response, 204)
    yield from _expect_allow(response, "/pets")


def other_methods(session: Session) -> Findings:
    """An unsupported method on a known path is rejected with 405 `method_not_allowed` and an `Allow` header."""
    for path in sorted({operation.path for operation in OPERATIONS}):
        method = next(each for each in ("PUT", "PATCH", "DELETE", "PURGE") if each not in allowed_methods(path))
        response = session.send(f"{method} {path.replace('{petId}', '0')}", body=b"")
        yield from expect_error(response, 405, "method_not_allowed")
        yield from _expect_allow(response, path)


def _expect_allow(response: Response, path: str) -> Findings:
    allowed = allowed_methods(path)
    found = {method.strip() for method in response.value("allow").split(",")}
    yield from expect(found == allowed, f"`Allow: {', '.join(sorted(allowed))}`", response)
