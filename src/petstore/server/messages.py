"""HTTP/1.1 messages: bytes in, requests out, in order.

llhttp (through httptools) validates and reads heads; this module finds where a head and a body end. Every bound holds
on the raw bytes of a head, before anything of it is parsed or decoded.
"""

import re
from collections import deque
from functools import lru_cache
from typing import Any, Protocol, cast

import httptools
import msgspec

from petstore.paths import decoded_path
from petstore.server.bodies import BodySource, BodyStream, Malformed

HEAD_MAX = 32 * 1024
TARGET_MAX = 8 * 1024
FIELDS_MAX = 100
METHOD_MAX = 64  # bytes of a head that are checked for a method whenever more of them come
HEAD_UNCOUNTED_MAX = 4 * FIELDS_MAX  # bytes: the shortest field, `a:` and a line end, has four
EMPTY_BYTES_MAX = 64  # of empty lines before a request line
PIPELINE_MAX = 1  # requests that may wait on one connection: as objects they are up to 30 times what they are as bytes
SPELLINGS_MAX, SPELLING_LENGTH_MAX = 1024, 64
HOST_MAX = 300  # characters: a name of 253 and a port
CONNECTION_MAX = 256  # characters of the Connection field: a longer one is not parsed, and asks to close
LENGTH_MAX = 20  # digits of Content-Length; Python raises ValueError for more than 4,300

HEAD_END = b"\r\n\r\n"
# The server itself reads these; an application names those that it reads.
FRAMING_FIELDS = frozenset({"host", "connection", "content-length", "transfer-encoding", "expect"})
METHODS = {
    name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT")
}
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_METHOD_PREFIX = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?: |$)").match
_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]").fullmatch
# A name, an IPv4 address or an IP literal, and a port (RFC 3986, 3.2); all of it may be empty.
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?").fullmatch


class RequestMessage(msgspec.Struct):
    """A request as it came over the wire. `fields` has lower-case names; repeated fields are joined by commas.

    `body` is complete, unless `stream` is there to read it from.
    """

    method: str
    path: str  # percent-decoded
    query: str  # as sent
    fields: dict[str, str]
    keep_alive: bool
    peer: str  # the address at the other end of the connection
    started: float  # when its first byte arrived, by time.perf_counter
    head_length: int = 0
    body: bytes = b""
    stream: BodyStream | None = None

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self.head_length + len(self.body) + (self.stream.held if self.stream is not None else 0)


class FieldNames:
    """Which header fields an application reads: raw spelling → lower-case name, or "" for fields that are skipped.

    The spellings that clients use are few, so the names are looked up, not computed.
    """

    def __init__(self, wanted: frozenset[str] | None) -> None:
        """`wanted` None: the application reads all fields. A name that ends in a hyphen: all that begin with it."""
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
    """Reads heads, one at a time and each complete, for one connection."""

    __slots__ = ("_fields", "_known", "_names", "_parser")

    def __init__(self, names: FieldNames) -> None:
        self._names = names
        self._known = names.known
        self._fields: dict[str, str] = {}
        self._parser: Any = None

    def on_header(self, raw: bytes, value: bytes) -> None:
        """Called by llhttp."""
        name = self._known.get(raw)
        if name is None:
            name = self._names.learn(raw)
        if name:
            text = value.decode("latin-1").rstrip(" \t")
            fields = self._fields
            fields[name] = f"{fields[name]}, {text}" if name in fields else text

    def read(self, head: bytes, peer: str, started: float) -> tuple[RequestMessage, int]:
        """The request, and the length of its body: -1 when the body is chunked. Raises Malformed."""
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
            # llhttp refuses methods that it does not know; the application answers them with 405.
            method, head = raw_method.decode(), b"PUT" + head[len(raw_method) :]
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            self._parser = None  # no upgrade is offered, so the message goes on as if none was asked for
        except httptools.HttpParserError:
            raise Malformed(400) from None
        fields, self._fields = self._fields, {}
        connection = fields.get("connection")
        keep_alive = version == b"HTTP/1.1" and (
            connection is None or connection == "keep-alive" or not _asks_to_close(connection)
        )
        length = 0
        if "content-length" in fields or "transfer-encoding" in fields:
            self._parser = None  # llhttp would wait for the body, which it is never given
            length = _length(fields)
            if version == b"HTTP/1.0":
                fields.pop("expect", None)  # RFC 9110, 10.1.1: a client of 1.0 would take a 100 for the response
        host = fields.get("host")
        if host is None:
            if version == b"HTTP/1.1":
                raise Malformed(400)
        elif len(host) > HOST_MAX or not _is_host(host):
            raise Malformed(400)
        if target[:1] != b"/" and b"://" in target:  # absolute-form: its host counts (RFC 9112, 3.2.2)
            fields["host"] = host = re.split(rb"[/?]", target.partition(b"://")[2], maxsplit=1)[0].decode("latin-1")
            if len(host) > HOST_MAX or not _is_host(host):
                raise Malformed(400)
        path, query = split_target(target)
        return RequestMessage(method, path, query, fields, keep_alive, peer, started, len(head)), length

    def close(self) -> None:
        """The parser and this object refer to each other: without this, only the garbage collector frees them."""
        self._parser = None


@lru_cache(maxsize=256)
def _is_host(text: str) -> bool:
    return _HOST(text) is not None


def _asks_to_close(connection: str) -> bool:
    return len(connection) > CONNECTION_MAX or "close" in (option.strip() for option in connection.lower().split(","))


def _length(fields: dict[str, str]) -> int:
    """llhttp has refused a repeated length, and a length beside a transfer coding. Raises Malformed."""
    coding = fields.get("transfer-encoding")
    if coding is None:
        length = fields["content-length"]
        if len(length) > LENGTH_MAX:
            raise Malformed(400)
        return int(length)
    if coding.lower() != "chunked":  # any other coding would be the body's, and nothing here undoes it
        raise Malformed(501)
    return -1


def split_target(target: bytes) -> tuple[str, str]:
    """The decoded path, and the query as sent. Raises Malformed for a fragment."""
    text = target.decode("latin-1")
    if "#" in text:
        raise Malformed(400)
    path, _, query = text.partition("?")
    if path[:1] != "/" and path != "*":
        path = "/" + path.partition("://")[2].partition("/")[2]  # absolute-form
    return decoded_path(path), query


class Source(BodySource, Protocol):
    """The connection that the bytes come from."""

    peer: str


class MessageReader:
    """The messages of one connection."""

    def __init__(self, source: Source, names: FieldNames) -> None:
        self.waiting: deque[RequestMessage] = deque()  # to be answered, in order
        self.rejected: int | None = None  # the status for a message that never became a request
        self.rejects_head = False  # the method of that message is HEAD
        self.over = False  # nothing more is read
        self.sends_on = False  # the client sends more than is read
        self._source: Source = source
        self._heads = HeadReader(names)
        self._stream: BodyStream | None = None  # of the request whose body is still arriving
        self._unread = b""
        self._is_unfinished = False  # what is unread is the beginning of a head, and no more
        self.received = 0  # bytes since the last response
        self._started = 0.0
        self._empty_bytes = 0  # of empty lines since the last request
        self._is_last = False  # the request whose body is arriving is the last one

    @property
    def within_head(self) -> bool:
        return bool(self._unread) and self._stream is None and not self.over

    @property
    def within_body(self) -> bool:
        return self._stream is not None

    @property
    def is_full(self) -> bool:
        """Whether no more may be read: a body waits for the application, or messages wait behind enough requests."""
        if self._stream is not None:
            return self._stream.is_full
        return len(self.waiting) > PIPELINE_MAX and bool(self._unread)

    @property
    def held(self) -> int:
        """Bytes in memory, except those of the request in flight."""
        return len(self._unread) + sum(each.held for each in self.waiting)

    def feed(self, data: bytes, now: float) -> None:
        """Take messages until more wait than may; `now` is by time.perf_counter."""
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
                elif len(self.waiting) > PIPELINE_MAX:
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
        """Returns what is left of the data. Raises Malformed."""
        if data[0] in b"\r\n":
            line = data.lstrip(b"\r\n")  # RFC 9112, 2.2: empty lines before a request line are ignored
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
        if not request.keep_alive or request.method == "CONNECT":  # no tunnel follows a CONNECT here
            self.over = True
        return data[end:] if behind else b""

    def _feed_body(self, stream: BodyStream, data: bytes) -> bytes:
        rest = stream.feed(data)
        if stream.complete:
            self._stream = None
            self.over = self._is_last
        return rest

    def end(self) -> None:
        """Nothing more will come."""
        self.over = True
        self._unread = b""
        self._heads.close()
        self._source = cast(Source, None)  # nothing is read any more, and the reader must not keep the connection alive
        if self._stream is not None:
            self._stream.break_off()
            self._stream = None

    def reject(self, status: int, message: bytes = b"") -> None:
        """Read no more. A message whose head was read is answered by the application; others get this status."""
        if self._stream is None:
            self.rejected = status
            self.rejects_head = (message or self._unread).startswith(b"HEAD ")
        self.sends_on = True
        self.end()


def _check_unfinished(head: bytes) -> None:
    """Refuse at once what cannot become a head. Raises Malformed."""
    _check_length(head)
    if head.count(b"\n") - 1 > FIELDS_MAX:
        raise Malformed(431)
    if not _METHOD_PREFIX(head) or head.count(b"\n") != head.count(b"\r\n"):
        raise Malformed(400)


def _check_length(head: bytes) -> None:
    """All that can go wrong when more of a line has come: a search of the whole head for each byte takes 50 µs.

    Raises Malformed.
    """
    if len(head) > TARGET_MAX and head.find(b"\n") < 0:
        raise Malformed(414)
    if len(head) > HEAD_MAX:
        raise Malformed(431)
