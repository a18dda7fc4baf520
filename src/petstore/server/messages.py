"""Parses the bytes received on a connection into HTTP/1.1 requests.

The head of a request consists of its request line and its header fields. This module finds the end of each head and
body, and checks the size of each head. Then llhttp, called through httptools, validates and parses the head.
"""

import re
from collections import deque
from functools import lru_cache
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools
import msgspec

from petstore.server.bodies import BodySource, BodyStream, Malformed

HEAD_MAX = 32 * 1024
TARGET_MAX = 8 * 1024
FIELDS_MAX = 100
METHOD_MAX = 64  # bytes; an incomplete head up to this length is fully rechecked whenever more data arrives
HEAD_UNCOUNTED_MAX = 4 * FIELDS_MAX  # bytes; each field takes at least four, so a shorter head cannot exceed FIELDS_MAX
ESCAPES_MAX = 64  # paths with more escapes (%XX) than this match no route, so they are not decoded
EMPTY_BYTES_MAX = 64  # maximum bytes of empty lines before a request line
PIPELINE_MAX = 2  # maximum waiting requests per connection; parsing can increase a request's memory use 30-fold
SPELLINGS_MAX, SPELLING_LENGTH_MAX = 1024, 64
HOST_MAX = 300  # maximum length of Host in characters; a host name has at most 253, and a port can follow
CONNECTION_MAX = 256  # maximum length of the Connection field; a longer value is treated as `close`
LENGTH_MAX = 20  # maximum digits in Content-Length; int() would raise ValueError for more than 4,300

HEAD_END = b"\r\n\r\n"
# The fields that the server itself needs. The application specifies which others it needs.
FRAMING_FIELDS = frozenset({"host", "connection", "content-length", "transfer-encoding", "expect"})
METHODS = {
    name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT")
}
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_METHOD_PREFIX = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?: |$)").match
_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]").fullmatch
# A host name, IPv4 address or IP literal, and an optional port (RFC 3986, 3.2). The host and the port may be empty.
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?").fullmatch


class RequestMessage(msgspec.Struct):
    """A request as received. Names in `fields` are lower-case, and repeated fields are joined with commas.

    If `stream` is None, `body` is the complete body. Otherwise, the body must be read from `stream`.
    """

    method: str
    path: str  # percent-decoded
    query: str  # as sent
    fields: dict[str, str]
    keep_alive: bool
    peer: str  # the address of the client or proxy
    started: float  # when the first byte arrived (time.perf_counter)
    head_length: int = 0
    body: bytes = b""
    stream: BodyStream | None = None

    @property
    def held(self) -> int:
        """Returns how many bytes of the request are in memory."""
        return self.head_length + len(self.body) + (self.stream.held if self.stream is not None else 0)


class FieldNames:
    """Maps a header field's raw name to its lower-case name, or to "" if the application does not need the field.

    Names are cached, because clients use only a few spellings.
    """

    def __init__(self, wanted: frozenset[str] | None) -> None:
        """If `wanted` is None, all fields are needed. A name in `wanted` that ends with a hyphen is a prefix."""
        self._wanted = None if wanted is None else wanted | FRAMING_FIELDS
        self._prefixes = tuple(name for name in wanted or () if name.endswith("-"))
        self.known: dict[bytes, str] = {}

    def learn(self, raw: bytes) -> str:
        name = raw.decode("latin-1").lower()
        if self._wanted is not None and name not in self._wanted and not name.startswith(self._prefixes):
            name = ""
        if len(raw) <= SPELLING_LENGTH_MAX and len(self.known) < SPELLINGS_MAX:
            self.known[raw] = name
        return name


class HeadReader:
    """Parses the request heads of one connection. Each head must be complete."""

    __slots__ = ("_fields", "_known", "_names", "_parser")

    def __init__(self, names: FieldNames) -> None:
        self._names = names
        self._known = names.known
        self._fields: dict[str, str] = {}
        self._parser: Any = None

    def on_header(self, raw: bytes, value: bytes) -> None:
        """Called by llhttp for each header field."""
        name = self._known.get(raw)
        if name is None:
            name = self._names.learn(raw)
        if name:
            text = value.decode("latin-1").rstrip(" \t")
            fields = self._fields
            fields[name] = f"{fields[name]}, {text}" if name in fields else text

    def read(self, head: bytes, peer: str, started: float) -> tuple[RequestMessage, int]:
        """Returns the request and the length of its body, which is -1 if the body is chunked.

        Raises Malformed if the head is not valid or too large.
        """
        if len(head) > HEAD_UNCOUNTED_MAX and (len(head) > HEAD_MAX or head.count(b"\n") - 2 > FIELDS_MAX):
            raise Malformed(414 if head.find(b"\r\n") > TARGET_MAX else 431)
        words = head[: head.find(b"\r\n")].split(b" ")
        if len(words) != 3:
            raise Malformed(400)
        raw_method, target, version = words
        if len(target) > TARGET_MAX:
            raise Malformed(414)
        if version != b"HTTP/1.1" and version != b"HTTP/1.0":
            raise Malformed(505 if _VERSION(version) else 400)
        method = METHODS.get(raw_method)
        if method is None:
            if not _TOKEN(raw_method):
                raise Malformed(400)
            # llhttp rejects unknown methods. Pass it a known method instead, so that the application can return 405.
            method, head = raw_method.decode(), b"PUT" + head[len(raw_method) :]
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            self._parser = None  # upgrades are not supported, so treat this like any other request
        except httptools.HttpParserError:
            raise Malformed(400) from None
        fields, self._fields = self._fields, {}
        connection = fields.get("connection")
        keep_alive = version == b"HTTP/1.1" and (
            connection is None or connection == "keep-alive" or not _asks_to_close(connection)
        )
        length = 0
        if "content-length" in fields or "transfer-encoding" in fields:
            self._parser = None  # the parser would expect the body next, but this module reads bodies itself
            length = _length(fields)
            if version == b"HTTP/1.0":
                fields.pop("expect", None)  # HTTP/1.0 clients do not understand 100 Continue (RFC 9110, 10.1.1)
        host = fields.get("host")
        if host is None:
            if version == b"HTTP/1.1":
                raise Malformed(400)
        elif len(host) > HOST_MAX or not _is_host(host):
            raise Malformed(400)
        if target[:1] != b"/" and b"://" in target:  # a target in absolute form overrides Host (RFC 9112, 3.2.2)
            fields["host"] = host = re.split(rb"[/?]", target.partition(b"://")[2], maxsplit=1)[0].decode("latin-1")
            if len(host) > HOST_MAX or not _is_host(host):
                raise Malformed(400)
        path, query = split_target(target)
        return RequestMessage(method, path, query, fields, keep_alive, peer, started, len(head)), length

    def close(self) -> None:
        """Breaks the reference cycle between the parser and this object, so that they are freed immediately."""
        self._parser = None


@lru_cache(maxsize=256)
def _is_host(text: str) -> bool:
    return _HOST(text) is not None


def _asks_to_close(connection: str) -> bool:
    return len(connection) > CONNECTION_MAX or "close" in (option.strip() for option in connection.lower().split(","))


def _length(fields: dict[str, str]) -> int:
    """Returns the length of the body, or -1 if it is chunked. Raises Malformed for any other transfer coding.

    llhttp has already rejected requests with several Content-Length fields, or with both Content-Length and
    Transfer-Encoding.
    """
    coding = fields.get("transfer-encoding")
    if coding is None:
        length = fields["content-length"]
        if len(length) > LENGTH_MAX:
            raise Malformed(400)
        return int(length)
    if coding.lower() != "chunked":  # other transfer codings are not supported
        raise Malformed(501)
    return -1


def split_target(target: bytes) -> tuple[str, str]:
    """Returns the decoded path, and the query as it was sent. Raises Malformed if the target has a fragment."""
    text = target.decode("latin-1")
    if "#" in text:
        raise Malformed(400)
    path, _, query = text.partition("?")
    if path[:1] != "/" and path != "*":
        path = "/" + path.partition("://")[2].partition("/")[2]  # the target is in absolute form
    return _decoded_path(path), query


def _decoded_path(path: str) -> str:
    """Percent-decodes the path, except for segments with an encoded slash, because decoding would split them in two.

    Returns a path unchanged if it has more than ESCAPES_MAX escapes, because decoding an escape takes microseconds and
    an 8 KiB path can contain 2,700 of them.
    """
    if "%" not in path or path.count("%") > ESCAPES_MAX:
        return path
    return "/".join(_decoded(segment) if "%" in segment else segment for segment in path.split("/"))


def _decoded(segment: str) -> str:
    plain = unquote(segment)
    return segment if "/" in plain else plain


class Source(BodySource, Protocol):
    """The connection that a MessageReader reads from."""

    peer: str


class MessageReader:
    """Turns the bytes received on one connection into request messages."""

    def __init__(self, source: Source, names: FieldNames) -> None:
        self.waiting: deque[RequestMessage] = deque()  # requests waiting to be handled, in order
        self.rejected: int | None = None  # the HTTP status with which to reject an invalid message, or None
        self.rejects_head = False  # whether the invalid message is a HEAD request
        self.over = False  # whether reading has ended
        self.sends_on = False  # whether the client has sent more data since reading ended
        self._source: Source = source
        self._heads = HeadReader(names)
        self._stream: BodyStream | None = None  # the body currently being received
        self._unread = b""
        self._is_unfinished = False  # whether the unread bytes are an incomplete head
        self.received = 0  # bytes received since the last response
        self._started = 0.0
        self._empty_bytes = 0  # bytes of empty lines received since the last request
        self._is_last = False  # whether the current body belongs to the last request on this connection

    @property
    def within_head(self) -> bool:
        return bool(self._unread) and self._stream is None and not self.over

    @property
    def within_body(self) -> bool:
        return self._stream is not None

    @property
    def is_full(self) -> bool:
        """Whether reading must pause because a body's buffer is full or too many requests are waiting."""
        if self._stream is not None:
            return self._stream.is_full
        return len(self.waiting) >= PIPELINE_MAX and bool(self._unread)

    @property
    def held(self) -> int:
        """Returns how many received bytes are in memory, not counting the request in flight."""
        return len(self._unread) + sum(each.held for each in self.waiting)

    def feed(self, data: bytes, now: float) -> None:
        """Parses data into requests, but pauses while too many are waiting. `now` is a time.perf_counter() value."""
        self.received += len(data)
        try:
            if not self._unread:
                self._started = now
            else:
                is_within_line = self._is_unfinished and b"\n" not in data and len(self._unread) > METHOD_MAX
                data = self._unread + data
                if is_within_line:
                    _check_length(data)
                    self._unread = data
                    return
                self._unread, self._is_unfinished = b"", False
            while data and not self.over:
                if self._stream is not None:
                    data = self._feed_body(self._stream, data)
                elif len(self.waiting) >= PIPELINE_MAX:
                    self._unread = data
                    self._source.update_reading()
                    return
                else:
                    data = self._feed_head(data, now)
            if data:
                self.sends_on = True
        except Malformed as error:
            self.reject(error.status, data)

    def _feed_head(self, data: bytes, now: float) -> bytes:
        """Reads one head and returns the remaining data. Raises Malformed if the head is not valid."""
        if data[0] in b"\r\n":
            line = data.lstrip(b"\r\n")  # empty lines before a request line are ignored (RFC 9112, 2.2)
            self._empty_bytes += len(data) - len(line)
            if self._empty_bytes > EMPTY_BYTES_MAX:
                raise Malformed(400)
            if not line:
                return b""
            data = line
        end = data.find(HEAD_END) + 4
        if end < 4:
            _check_unfinished(data)
            self._unread = data
            self._is_unfinished = True
            return b""
        behind = len(data) - end
        self._empty_bytes = 0
        request, length = self._heads.read(data[:end] if behind else data, self._source.peer, self._started)
        self._started = now
        if length:
            expects = request.fields.get("expect", "").lower() == "100-continue"
            stream = BodyStream(self._source, length, continues=expects)
            self.waiting.append(request)
            request.stream = self._stream = stream
            rest = stream.feed(data[end:])
            if stream.complete:
                request.body, request.stream, self._stream = stream.take(), None, None
                self.over = not request.keep_alive
            self._is_last = not request.keep_alive
            return rest
        self.waiting.append(request)
        if not request.keep_alive or request.method == "CONNECT":  # tunnels are not supported
            self.over = True
        return data[end:] if behind else b""

    def _feed_body(self, stream: BodyStream, data: bytes) -> bytes:
        rest = stream.feed(data)
        if stream.complete:
            self._stream = None
            self.over = self._is_last
        return rest

    def end(self) -> None:
        """Stops reading, and drops unread data."""
        self.over = True
        self._unread = b""
        self._heads.close()
        self._source = cast(Source, None)  # the reader must not keep the connection object alive
        if self._stream is not None:
            self._stream.break_off()
            self._stream = None

    def reject(self, status: int, message: bytes = b"") -> None:
        """Stops reading, and rejects the message with this status unless the application is already handling it."""
        if self._stream is None:
            self.rejected = status
            self.rejects_head = (message or self._unread).startswith(b"HEAD ")
        self.sends_on = True
        self.end()


def _check_unfinished(head: bytes) -> None:
    """Raises Malformed if an incomplete head can no longer become valid."""
    _check_length(head)
    if head.count(b"\n") - 1 > FIELDS_MAX:
        raise Malformed(431)
    if not _METHOD_PREFIX(head) or head.count(b"\n") != head.count(b"\r\n"):
        raise Malformed(400)


def _check_length(head: bytes) -> None:
    """Raises Malformed if an incomplete head is too long.

    For a head longer than METHOD_MAX, this is the only check on new data that contains no line ending. Running every
    check takes 50 µs, which would be too slow if a client sent one byte at a time.
    """
    if len(head) > TARGET_MAX and head.find(b"\n") < 0:
        raise Malformed(414)
    if len(head) > HEAD_MAX:
        raise Malformed(431)
