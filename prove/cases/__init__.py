"""The table of HTTP strictness: what is sent, the rule of RFC 9110 or 9112 it is about, and what may come back."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from prove.http import Conversation

# What becomes of the connection. Behind every message a plain request is sent: `stays` means that it was answered,
# `closes` that it was not and that the server closed; `either` leaves it to the server.
Fate = Literal["stays", "closes", "either"]

KEY = b"pets_live_".ljust(46, b"?")  # becomes an API key, which is as long, when it is sent
HOST = b"Host: petstore.test"
AUTH = b"Authorization: Bearer " + KEY
# Animals of this name must never be added, the others must: once for every 201.
NEVER = b'{"name":"never","categoryId":1}'
FINE = b'{"name":"fine","categoryId":1}'
CHUNKED = b"Transfer-Encoding: chunked"

Check = Callable[[Conversation], object]


class Case(NamedTuple):
    section: str
    rule: str
    sent: bytes | tuple[bytes, ...]  # a tuple is sent piece by piece
    fate: Fate
    statuses: tuple[int, ...]  # of the first answer; 0: closing without one is as good
    check: Check | None = None  # of all that came back, if a status says too little
    methods: tuple[str, ...] = ("GET",)  # the client's own memory of what it asked: a HEAD has no body
    half_close: bool = False
    octets: int = 0  # sent in pieces of so many
    waits: bool = False  # for an answer before the second piece
    deviates: str = ""  # why the server does otherwise than the section asks, where it does


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
