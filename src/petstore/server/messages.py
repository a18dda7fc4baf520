"""HTTP/1.1 messages: what a head says, a request whose body may still be coming, and the bytes of a reply."""

import asyncio
import http
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec

from petstore.errors import InvalidBody
from petstore.web.replies import Reply
from petstore.web.requests import Memo

CLOSING = (408, 413)  # answers after which the rest of the body is not waited for

Fields = dict[str, list[str]]


STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in http.HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# A name, an IPv4 address or an IP literal, and a port (RFC 3986, 3.2); all of it may be empty.
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?").fullmatch


class Refused(Exception):
    """A message that llhttp takes and we do not."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Sender(Protocol):
    """The connection behind a request."""

    peer: str

    def write(self, data: bytes) -> None: ...

    def resume(self) -> None:
        """Let more of the body come in."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """What the head of a message says."""

    method: str
    path: str
    query: str
    fields: Fields
    keep_alive: bool
    expects_continue: bool
    length: int  # of the body; -1 when it is not declared
    memo: Memo


class HttpRequest:
    """A `Request` as it came over the wire."""

    complete = False
    chunks: Sequence[bytes] = ()
    arrived: asyncio.Future[None] | None = None  # set while someone waits for more of the body
    broken_off = False  # no more of it will come
    held = 0  # bytes of it
    _encouraged = False

    def __init__(self, connection: Sender, head: Head) -> None:
        self._connection = connection
        self._fields = head.fields
        self.head = head
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.memo = head.memo

    @property
    def peer(self) -> str:
        return self._connection.peer

    def headers(self, name: str) -> Sequence[str]:
        return self._fields.get(name, ())

    def header(self, name: str) -> str | None:
        values = self._fields.get(name)
        return values[0] if values else None

    async def body(self) -> AsyncIterator[bytes]:
        while self.chunks or not self.complete:
            if not self.chunks:
                await self._more()
            chunk, self.chunks, self.held = b"".join(self.chunks), (), 0
            self._connection.resume()
            yield chunk

    async def whole_body(self) -> bytes:
        while not self.complete:
            await self._more()
        return b"".join(self.chunks)

    def body_at_hand(self) -> bytes | None:
        return b"".join(self.chunks) if self.complete else None

    async def _more(self) -> None:
        """Returns when more of the body, or its end, has come. Raises InvalidBody when neither will."""
        if self.broken_off:
            raise InvalidBody("The body broke off before its end.")
        if self.head.expects_continue and not self.chunks and not self._encouraged:
            self._connection.write(_CONTINUE)
        self._encouraged = True
        self.arrived = asyncio.get_running_loop().create_future()
        try:
            await self.arrived
        finally:
            self.arrived = None

    def take(self, chunk: bytes) -> None:
        if isinstance(self.chunks, list):
            self.chunks.append(chunk)
        else:
            self.chunks = [*self.chunks, chunk]
        self.held += len(chunk)
        self.wake()

    def wake(self) -> None:
        if self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)

    def break_off(self) -> None:
        self.broken_off = True
        self.wake()


def read_head(parser: Any, method: str, target: bytes, fields: Fields) -> Head:
    """Raises Refused for what RFC 9110 and 9112 forbid and llhttp lets pass."""
    version = parser.get_http_version()
    if version != "1.1" and version != "1.0":
        raise Refused(505)
    hosts = fields.get("host", ())
    if len(hosts) != 1 and (hosts or version == "1.1"):
        raise Refused(400)
    if (hosts and not _HOST(hosts[0])) or b"#" in target:
        raise Refused(400)
    path, query = _split(target)
    if "transfer-encoding" in fields:
        # Any other coding would be the body's, and nobody would undo it.
        if [coding.lower() for coding in fields["transfer-encoding"]] != ["chunked"]:
            raise Refused(501)
        length = -1
    else:
        length = int(fields["content-length"][0]) if "content-length" in fields else 0
    return Head(
        method or parser.get_method().decode("ascii"),
        path,
        query,
        fields,
        keep_alive=version != "1.0" and parser.should_keep_alive(),
        expects_continue=version == "1.1" and "expect" in fields and fields["expect"][0].lower() == "100-continue",
        length=length,
        memo=Memo(),
    )


def render(reply: Reply, *, stays: bool, date: str) -> bytes:
    """The head of an answer."""
    length = "" if reply.status in (204, 304) else f"content-length: {len(reply.body)}\r\n"
    close = "" if stays or reply.status in CLOSING else "connection: close\r\n"  # those say so themselves
    return f"{STATUS_LINES[reply.status]}{date}{reply.headers}{length}{close}\r\n".encode("latin-1")


def _split(target: bytes) -> tuple[str, str]:
    """Path and query of a request target; the path percent-decoded, except for an encoded slash."""
    path, _, query = target.partition(b"?")
    if path[:1] != b"/" and path != b"*":
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]  # absolute-form
    text = path.decode("latin-1")
    if "%" in text:
        text = "/".join(part if "/" in (plain := unquote(part)) else plain for part in text.split("/"))
    return text, query.decode("latin-1")
