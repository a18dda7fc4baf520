"""The table of HTTP cases: the message, the rule of RFC 9110 or 9112 that it tests, and the allowed responses."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from prove.http import Conversation

# What happens to the connection after the message, which is followed by a plain request. With `stays`, the server must
# answer that request. With `closes`, it must close the connection instead. `either` allows both.
Fate = Literal["stays", "closes", "either"]

KEY = b"pets_live_".ljust(46, b"?")  # a placeholder for an API key of the same length
HOST = b"Host: petstore.test"
AUTH = b"Authorization: Bearer " + KEY
# The animal in NEVER must not be added by any message. Other animals must be added exactly once for each 201.
NEVER = b'{"name":"never","categoryId":1}'
FINE = b'{"name":"fine","categoryId":1}'
CHUNKED = b"Transfer-Encoding: chunked"

Check = Callable[[Conversation], object]


class Case(NamedTuple):
    section: str
    rule: str
    sent: bytes | tuple[bytes, ...]  # a tuple is sent piece by piece
    fate: Fate
    statuses: tuple[int, ...]  # allowed for the first response; 0 means that the server may close without one
    check: Check | None = None  # an additional check of all responses
    methods: tuple[str, ...] = ("GET",)  # of the requests, because a response to HEAD has no body
    half_close: bool = False
    octets: int = 0  # if not 0, the message is sent in pieces of this size
    waits: bool = False  # whether to wait for a response before sending the second piece
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
