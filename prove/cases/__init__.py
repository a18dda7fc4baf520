"""The table of HTTP cases: the message, the rule of RFC 9110 or 9112 that it tests, and the allowed responses."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from prove.http import Conversation

# What happens to the connection. A plain request follows every message. `stays` means that the server answers it,
# `closes` that the server closes the connection instead, and `either` allows both.
Fate = Literal["stays", "closes", "either"]

KEY = b"pets_live_".ljust(46, b"?")  # replaced with an API key of the same length when it is sent
HOST = b"Host: petstore.test"
AUTH = b"Authorization: Bearer " + KEY
# Animals with this name must never be added. All others must be added once for every 201.
NEVER = b'{"name":"never","categoryId":1}'
FINE = b'{"name":"fine","categoryId":1}'
CHUNKED = b"Transfer-Encoding: chunked"

Check = Callable[[Conversation], object]


class Case(NamedTuple):
    section: str
    rule: str
    sent: bytes | tuple[bytes, ...]  # a tuple is sent piece by piece
    fate: Fate
    statuses: tuple[int, ...]  # of the first response. 0 means that the server may close without one
    check: Check | None = None  # checks all responses, if the status is not enough
    methods: tuple[str, ...] = ("GET",)  # the methods of the requests, because the response to HEAD has no body
    half_close: bool = False
    octets: int = 0  # the size of the pieces, if it is sent in pieces
    waits: bool = False  # whether to wait for a response before the second piece
    deviates: str = ""  # why the server deviates from the section, if it does


def lines(*parts: bytes) -> bytes:
    return b"\r\n".join(parts) + b"\r\n\r\n"


def get(*fields: bytes, target: bytes = b"/v1/pets?limit=1", version: bytes = b"HTTP/1.1") -> bytes:
    return lines(b"GET " + target + b" " + version, HOST, AUTH, *fields)


def post(body: bytes, *fields: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return lines(b"POST /v1/pets " + version, HOST, AUTH, *fields) + body


def sized(body: bytes, *fields: bytes) -> bytes:
    return post(body, b"Content-Length: %d" % len(body), *fields)


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


LAST = b"0\r\n\r\n"


def all_cases() -> list[Case]:
    from prove.cases import body, connection, head, semantics

    return [*head.CASES, *body.CASES, *connection.CASES, *semantics.CASES]
