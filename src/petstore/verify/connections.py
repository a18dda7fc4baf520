"""Connections: pipelining, request bodies sent in parts, and rejected messages."""

from petstore.verify.findings import Finding, Findings, expect, expect_error, expect_status
from petstore.verify.session import Session, new_pet
from petstore.verify.transport import Connection, NoResponse

BODY_MAX = 64 * 1024
JSON = "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"


def _chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


def pipelining(session: Session) -> Findings:
    """Pipelined requests on one connection are answered in order."""
    lines = ["GET /pets?limit=1", "GET /pets/0", "GET /pets?limit=0"]
    with session.connect() as connection:
        connection.write(b"".join(session.message(line) for line in lines))
        statuses = [session.read(connection, line).status for line in lines]
    if 410 in statuses:
        statuses[statuses.index(410)] = 404
    if statuses != [200, 404, 400]:
        yield Finding("200, 404 and 400 for three requests on one connection", f"{statuses}")


def expect_continue(session: Session) -> Findings:
    """After `Expect: 100-continue`, the service sends a 100 response before it receives the body."""
    line, body = "POST /pets", new_pet()
    head = session.message(line, JSON, "Expect: 100-continue", body=body).removesuffix(body)
    with session.connect() as connection:
        connection.write(head)
        interim = connection.read(line, interim=True)
        yield from expect(interim.status == 100, "100 before the body", interim)
        if interim.status == 100:
            connection.write(body)
            response = session.read(connection, line)
            session.count_added(response)
            yield from expect_status(response, 201)


def chunked_body(session: Session) -> Findings:
    """A body can be sent in chunks and without a `Content-Type`."""
    body = new_pet()
    response = session.send("POST /pets", CHUNKED, body=_chunked(body[:10], body[10:]))
    session.count_added(response)
    yield from expect_status(response, 201)


def body_too_large(session: Session) -> Findings:
    """A body larger than 64 KiB is rejected with 413 `body_too_large`, whether or not it is chunked."""
    body = b" " * (BODY_MAX + 1)
    for response in (
        session.send("POST /pets", JSON, body=body),
        session.send("POST /pets", JSON, CHUNKED, body=_chunked(body[:40_000], body[40_000:])),
    ):
        yield from expect_error(response, 413, "body_too_large", "a proxy rejects bodies of this size")


def largest_body(session: Session) -> Findings:
    """A body of exactly 64 KiB is accepted."""
    response = session.post(new_pet().ljust(BODY_MAX))
    yield from expect_status(response, 201)


def malformed(session: Session) -> Findings:
    """A request with conflicting `Content-Length` headers gets exactly one 400, and the connection is closed."""
    message = session.message("POST /pets", "Content-Length: 3", "Content-Length: 30", key="") + b"{} "
    with session.connect() as connection:
        yield from _expect_rejection(session, connection, message, 400)
        if not connection.is_closed():
            yield Finding("a closed connection after a malformed request", "an open connection")


def long_target(session: Session) -> Findings:
    """A request target longer than 8 KiB is rejected with 414."""
    with session.connect() as connection:
        message = session.message("GET /pets?" + "v" * 9_000, key="")
        yield from _expect_rejection(session, connection, message, 414)


def _expect_rejection(session: Session, connection: Connection, message: bytes, status: int) -> Findings:
    """Expects the service or a proxy to reject the message. Closing the connection also counts as a rejection."""
    try:
        connection.write(message)
        response = session.read_rejection(connection, "a malformed request")
    except (NoResponse, ConnectionError):
        return
    yield from expect(response.status == status, f"{status}", response)
