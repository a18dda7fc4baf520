"""The adapter to HTTP/1.1 itself: production. Bytes in, the pipeline, bytes out, all in one thread.

llhttp (through httptools) reads the messages, strictly: what it rejects is answered with an empty 400 and closed. What
is bounded: the head's size and time, the time a connection may be idle or not take its answers, the requests that wait
on it. The body's size and time are the pipeline's.
"""

import asyncio
import contextlib
import functools
import http
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from email.utils import formatdate
from typing import Any
from urllib.parse import unquote

import httptools

from petstore.errors import InvalidBody
from petstore.web.app import App
from petstore.web.replies import Reply

HEAD_MAX = 64 * 1024
HEAD_SECONDS = 8.0
IDLE_SECONDS = 75.0
WRITE_SECONDS = 20.0
BODY_BUFFER = 128 * 1024
PIPELINE_MAX = 32
DRAIN_SECONDS = 3.5
SHORT_TARGET = 256

CLOSING = (408, 413)  # answers after which the rest of the body is not waited for
BROKEN_OFF = InvalidBody("The body broke off before its end.")

Fields = dict[bytes, list[bytes]]

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in http.HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpRequest:
    """A `Request` as it came over the wire."""

    __slots__ = (
        "_connection", "_fields", "arrived", "chunks", "complete", "expects_continue", "keep_alive", "method", "path",
        "query",
    )  # fmt: skip

    def __init__(self, connection: "Connection", method: str, target: bytes, fields: Fields) -> None:
        self._connection = connection
        self._fields = fields
        self.method = method
        self.path, self.query = _split(target) if len(target) < SHORT_TARGET else _split.__wrapped__(target)
        self.keep_alive = True
        self.expects_continue = False
        self.chunks: list[bytes] = []
        self.complete = False
        self.arrived: asyncio.Future[None] | None = None  # set while someone waits for more of the body

    @property
    def peer(self) -> str:
        return self._connection.peer

    def headers(self, name: str) -> list[str]:
        return [value.decode("latin-1") for value in self._fields.get(name.encode(), ())]

    def header(self, name: str) -> str | None:
        values = self._fields.get(name.encode())
        return values[0].decode("latin-1") if values else None

    async def body(self) -> AsyncIterator[bytes]:
        while self.chunks or not self.complete:
            if not self.chunks:
                await self._more()
            chunk, self.chunks = b"".join(self.chunks), []
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
        if self.expects_continue:
            self.expects_continue = False
            self._connection.write(_CONTINUE)
        self.arrived = asyncio.get_running_loop().create_future()
        try:
            await self.arrived
        finally:
            self.arrived = None

    def wake(self, error: Exception | None = None) -> None:
        if self.arrived is not None and not self.arrived.done():
            if error is None:
                self.arrived.set_result(None)
            else:
                self.arrived.set_exception(error)


class Connection(asyncio.Protocol):
    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._parser: Any = httptools.HttpRequestParser(self)
        self._waiting: deque[HttpRequest] = deque()  # complete heads, the first one may be in hand
        self._busy = False
        self._reading: HttpRequest | None = None  # whose body is still coming
        self._deaf = False  # nothing more is read
        self._rejected: int | None = None  # the status of a message that never became a request
        self._head_bytes = 0
        self.since = time.monotonic()  # when the present state began: idle, reading a head, or not being read
        self._target = b""
        self._fields: Fields = {}
        self.peer = ""

    # What the event loop calls

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self.lost.set_result(None)
        self._waiting.clear()
        if self._reading is not None:
            self._reading.wake(BROKEN_OFF)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._head_bytes == 0:
            self.since = time.monotonic()
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._waiting[-1].keep_alive = False  # no upgrade is offered: answer as if it had not been asked for
        except httptools.HttpParserError:
            self._reject(400)
        if self._reading is None and self._head_bytes > HEAD_MAX:
            self._reject(431)
        if not self._busy:
            self._next()

    def pause_writing(self) -> None:
        self._transport.pause_reading()
        self.since = time.monotonic()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    # What the parser calls

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is None:  # what follows a chunked body is not ours to know
            self._fields.setdefault(name.lower(), []).append(value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        parser, fields = self._parser, self._fields
        version = parser.get_http_version()
        hosts = len(fields.get(b"host", ()))
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            raise httptools.HttpParserError("one Host is required")
        request = HttpRequest(self, parser.get_method().decode("ascii"), self._target, fields)
        request.keep_alive = version != "1.0" and parser.should_keep_alive()
        request.expects_continue = b"expect" in fields and fields[b"expect"][0].lower() == b"100-continue"
        self._reading = request
        self._waiting.append(request)
        if len(self._waiting) > PIPELINE_MAX:
            self._transport.pause_reading()

    def on_body(self, chunk: bytes) -> None:
        request = self._reading
        if request is not None:
            request.chunks.append(chunk)
            request.wake()
            if sum(map(len, request.chunks)) > BODY_BUFFER:
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        request = self._reading
        if request is not None:
            request.complete = True
            request.wake()
        self._reading = None
        self._head_bytes = 0
        self._target = b""
        self._fields = {}

    # Requests in, replies out, in order

    def _next(self) -> None:
        while self._waiting and not self._busy:
            request = self._waiting[0]
            answer = self._server.app.answer(request)
            if self._server.never_waits and request.method != "POST":
                try:
                    answer.send(None)
                except StopIteration as done:
                    self._finish(request, done.value)
                    continue
                raise RuntimeError("an operation waited that must not")
            self._busy = True
            self._server.run(self._answer(request, answer))
        if self._rejected is not None and not self._waiting:
            self._close_with(self._rejected)

    async def _answer(self, request: HttpRequest, answer: Coroutine[Any, Any, Reply]) -> None:
        reply = await answer
        self._busy = False
        self._finish(request, reply)
        self._next()

    def _finish(self, request: HttpRequest, reply: Reply) -> None:
        if self._transport.is_closing() or not self._waiting:
            return  # the client has gone
        self._waiting.popleft()
        # A body that was not read to its end would be taken for the next request.
        stays = request.keep_alive and request.complete and not self._server.closing and reply.status not in CLOSING
        self.write(render(reply, request.method, stays=stays, date=self._server.date))
        if not stays:
            self._waiting.clear()
            self._transport.close()
        elif len(self._waiting) == PIPELINE_MAX:
            self._transport.resume_reading()
        self.since = time.monotonic()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def resume(self) -> None:
        self._transport.resume_reading()

    def _reject(self, status: int) -> None:
        """Read no more. After the answers that are due comes a last one, with no body and no headers of ours."""
        self._deaf = True
        broken, self._reading = self._reading, None
        if broken is not None and self._busy and self._waiting[0] is broken:
            broken.wake(BROKEN_OFF)  # it is in hand already: the last answer is its own
            return
        if broken is not None:
            self._waiting.remove(broken)
        self._rejected = status

    def _close_with(self, status: int) -> None:
        if not self._transport.is_closing():
            self.write(f"{_STATUS_LINES[status]}connection: close\r\ncontent-length: 0\r\n\r\n".encode())
            self._transport.close()

    def sweep(self, now: float) -> None:
        """Close what has been in its present state for too long."""
        waited = now - self.since
        if self._transport.get_write_buffer_size() > 0:
            if waited > WRITE_SECONDS:
                self._transport.abort()
        elif self._waiting or self._reading is not None:
            return  # a request is in hand; its own limits hold
        elif waited > (HEAD_SECONDS if self._head_bytes else IDLE_SECONDS):
            self._transport.close()

    def close_if_idle(self) -> None:
        if not self._waiting and not self._busy:
            self._transport.close()


class HttpServer:
    """All connections of one worker."""

    def __init__(self, app: App, *, never_waits: bool) -> None:
        self.app = app
        # Reads from embedded backends never wait for anything, so they need no task: a fifth of their time.
        self.never_waits = never_waits
        self.connections: set[Connection] = set()
        self.closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.tick()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tick(self) -> None:
        """Once a second."""
        self.date = f"date: {formatdate(usegmt=True)}\r\n"
        now = time.monotonic()
        for connection in list(self.connections):
            connection.sweep(now)

    async def drain(self) -> None:
        """Close what is idle, and wait for the rest to be answered, within a limit."""
        self.closing = True
        for connection in list(self.connections):
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self.connections:
                    await next(iter(self.connections)).lost


def render(reply: Reply, method: str, *, stays: bool, date: str) -> bytes:
    """The bytes of an answer."""
    lines = [_STATUS_LINES[reply.status], date]
    lines += [f"{name}: {value}\r\n" for name, value in reply.headers]
    if reply.status not in (204, 304):
        lines.append(f"content-length: {len(reply.body)}\r\n")
    if not stays and reply.status not in CLOSING:  # those say so themselves
        lines.append("connection: close\r\n")
    lines.append("\r\n")
    head = "".join(lines).encode("latin-1")
    return head if method == "HEAD" else head + reply.body


@functools.lru_cache(maxsize=4096)
def _split(target: bytes) -> tuple[str, str]:
    """Path and query of a request target; the path percent-decoded, except for an encoded slash."""
    if target[:1] != b"/" and target != b"*":
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]  # absolute-form
    path, _, query = target.partition(b"#")[0].partition(b"?")
    text = path.decode("latin-1")
    if "%" in text:
        text = "/".join(part if "/" in (plain := unquote(part)) else plain for part in text.split("/"))
    return text, query.decode("latin-1")
