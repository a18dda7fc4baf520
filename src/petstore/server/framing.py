"""Where a message ends and the next one begins: bytes in, requests out, in order.

llhttp (through httptools) reads, strictly; what it takes and RFC 9110 or 9112 forbid, `wire.py` refuses. What is
bounded: the head's size, what may be wrapped around a body, the requests that wait. The body's size is the pipeline's.
"""

import re
from collections import deque
from typing import Any, Protocol

import httptools

from petstore.server.head_cache import HeadCache
from petstore.server.messages import Fields, HttpRequest, Refused, Sender, read_head

HEAD_MAX = 64 * 1024
MESSAGE_MAX = 1024 * 1024  # a body of 64 KiB in chunks of one byte, each with a short extension, is less
BODY_BUFFER = 128 * 1024
PIPELINE_MAX = 32
PIECE = 4096  # bytes that the parser is given at a time

_METHOD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ").match


class Source(Sender, Protocol):
    """Where the bytes come from."""

    def pause(self) -> None:
        """Let no more come in, until `resume`."""


class Messages:
    """Those of one connection."""

    def __init__(self, source: Source, repeated: HeadCache) -> None:
        self.waiting: deque[HttpRequest] = deque()  # to be answered, in order
        self.reading: HttpRequest | None = None  # whose body is still coming
        self.size = 0  # bytes of the present message, so far; 0 between two
        self.unread = b""  # what came when too many waited already
        self.over = False  # no more is read
        self.broken = False  # one was refused before its end
        self.rejected: int | None = None  # the status of one that never became a request
        self._source = source
        self._repeated = repeated
        self._parser: Any = httptools.HttpRequestParser(self)
        self._method = ""  # if it is not one that the parser knows
        self._target = b""
        self._fields: Fields = {}

    def recall(self, data: bytes) -> HttpRequest | None:
        """The request that these bytes are, if that is known without reading them. To be called between messages."""
        head, end, body = data.partition(b"\r\n\r\n")
        known = (self._repeated.heads.get(head) or self._repeated.recall(head)) if end else None
        if known is None or known.length != len(body) or len(self.waiting) >= PIPELINE_MAX:
            return None
        request = HttpRequest(self._source, known)
        request.complete = True
        request.chunks = (body,)
        return request

    def read_and_learn(self, data: bytes) -> None:
        """Like `read`, between messages: what comes alone and whole will be recalled."""
        before = len(self.waiting)
        self.read(data)
        # Only what these bytes have brought: what was there before them is another message, with another's key.
        if len(self.waiting) == before + 1:
            brought = self.waiting[-1]
            head, end, body = data.partition(b"\r\n\r\n")
            if end and brought.complete and brought.head.length == len(body) and brought.method != "CONNECT":
                self._repeated.learn(head, brought.head)

    def read(self, data: bytes) -> None:
        """Take messages until more wait than may: thousands fit into one read."""
        data = self.unread + data
        start = 0
        while start < len(data) and len(self.waiting) <= PIPELINE_MAX and not self.over:
            self._feed(data[start : start + PIECE])
            start += PIECE
        self.unread = data[start:]

    def end(self) -> None:
        """No more will come."""
        self.over = True
        if self.reading is not None:
            self.reading.break_off()
            self.reading = None

    # What the parser calls

    def on_message_begin(self) -> None:
        self.size = self.size or 1  # it may begin in the bytes that ended another one

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.reading is None:  # what follows a chunked body is not ours to know
            repeated = self._repeated
            field = repeated.names.get(name) or repeated.name_of(name)
            text = repeated.texts.get(value) or repeated.text_of(value)
            if field in self._fields:
                self._fields[field].append(text)
            else:
                self._fields[field] = [text]

    def on_headers_complete(self) -> None:
        if self.reading is not None:
            return  # the head of a body, see _ignore_upgrade
        self._check_size()
        request = HttpRequest(self._source, read_head(self._parser, self._method, self._target, self._fields))
        self.reading = request
        self.waiting.append(request)
        if len(self.waiting) > PIPELINE_MAX:
            self._source.pause()

    def on_body(self, chunk: bytes) -> None:
        request = self.reading
        if request is not None:
            request.take(chunk)
            if request.held > BODY_BUFFER:
                self._source.pause()

    def on_message_complete(self) -> None:
        request = self.reading
        if request is not None:
            request.complete = True
            request.wake()
            if request.held > BODY_BUFFER:
                self._source.resume()
        self.reading = None
        self.size = 0
        self._method = ""
        self._target = b""
        self._fields = {}

    def _feed(self, data: bytes) -> None:
        self.size += len(data)
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as asked:
                data = data[asked.args[0] :] if self._ignore_upgrade() else b""
            except httptools.HttpParserInvalidMethodError:
                named = _METHOD(data)
                if named is None or self.size != len(data):  # another message came before it
                    self._reject(501 if named else 400)
                    return
                self._method = named[1].decode()
                self._parser = httptools.HttpRequestParser(self)
                data = b"PUT" + data[named.end(1) :]
            except httptools.HttpParserError as error:
                why = error.__context__
                self._reject(why.status if isinstance(why, Refused) else 400)
                return
        if self.reading is not None:
            if self.size > MESSAGE_MAX and self.reading.head.length < 0:
                self._reject(400)
        elif self.size > HEAD_MAX:
            self._reject(431 if self._fields else 414)

    def _check_size(self) -> None:
        """Raises Refused when a head that came in one piece, or behind another message, is too large."""
        if len(self._target) > HEAD_MAX:
            raise Refused(414)
        if sum(len(name) + len(value) + 4 for name, values in self._fields.items() for value in values) > HEAD_MAX:
            raise Refused(431)

    def _ignore_upgrade(self) -> bool:
        """Go on as if no upgrade had been asked for: none is offered. Not after a CONNECT, whose tunnel is no HTTP.

        llhttp has stopped behind the head and taken it for the whole message; a new one is told how long the body is.
        """
        request = self.waiting[-1]
        if request.method == "CONNECT":
            self.over = True
            return False
        request.complete = False
        self.reading = request
        self._parser = httptools.HttpRequestParser(self)
        length = request.head.length
        framing = b"Transfer-Encoding: chunked" if length < 0 else b"Content-Length: %d" % length
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        self._target = b""
        return True

    def _reject(self, status: int) -> None:
        """Read no more. If it is not known whom this message is from, the last answer has nothing but this status."""
        self.broken = True
        if self.reading is None:
            self.rejected = status
        self.end()
