"""The adapter to HTTP/1.1 itself: production. Bytes in, the pipeline, bytes out, all in one thread.

llhttp (through httptools) reads the messages, strictly: what it rejects is answered with an empty 400 and closed. What
is bounded: the head's size and time, what may be wrapped around a body, the time a connection may be idle or not take
its answers, the requests that wait on it. The body's size and time are the pipeline's.
"""

import asyncio
import functools
import re
from collections import deque
from collections.abc import Coroutine
from typing import Any

import httptools

from petstore.metrics import REJECTED
from petstore.web.replies import Reply
from petstore.web.server import HttpServer
from petstore.web.wire import CLOSING, STATUS_LINES, Fields, HttpRequest, Refused, read_head, render

HEAD_MAX = 64 * 1024
MESSAGE_MAX = 1024 * 1024  # a body of 64 KiB in chunks of one byte, each with a short extension, is less
HEAD_SECONDS = 8.0
IDLE_SECONDS = 75.0
WRITE_SECONDS, WRITE_LEAST = 20.0, 32 * 1024  # a client takes at least so much in that time, or is gone
LARGE = 16 * 1024
LINGER_SECONDS = 2.0
LINGER_MAX = 512 * 1024
BODY_BUFFER = 128 * 1024
PIPELINE_MAX = 32
PIECE = 4096  # bytes that the parser is given at a time

_METHOD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ").match


class Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._repeated = server.repeated
        self._parser: Any = httptools.HttpRequestParser(self)
        self._in_hand: HttpRequest | None = None  # being answered
        self._waiting: deque[HttpRequest] = deque()  # to be answered after it, in order
        self._reading: HttpRequest | None = None  # whose body is still coming
        self._unread = b""  # what came when too many waited already
        self._pumping = False
        self._full = False  # the client does not take its answers
        self._unsent = 0  # bytes of them, when it last took some
        self._deaf = False  # what still comes in is thrown away
        self._broken = False  # a message was refused before its end
        self._rejected: int | None = None  # the status of a message that never became a request
        self._head_bytes = 0
        self._method = ""  # if it is not one that the parser knows
        self._target = b""
        self._fields: Fields = {}
        self.since = server.now  # when the present state began: idle, reading a head, not being read, or closing
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
            self._reading.break_off()

    def eof_received(self) -> bool:
        """The client says no more, but may still listen: what it has asked for is answered first."""
        self._deaf = True
        if self._reading is not None:
            self._reading.break_off()
            self._reading = None
        asked = self._in_hand is not None or bool(self._waiting)
        return asked and self._transport.can_write_eof()  # TLS has no half-closed connections

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._head_bytes += len(data)
            if self._head_bytes > LINGER_MAX:
                self._transport.abort()
            return
        if self._head_bytes == 0 and self._reading is None and not self._unread:  # between two messages
            head, end, body = data.partition(b"\r\n\r\n")
            known = (self._repeated.heads.get(head) or self._repeated.recall(head)) if end else None
            if known is not None and known.length == len(body) and len(self._waiting) < PIPELINE_MAX:
                request = HttpRequest(self, known)
                request.complete = True
                request.chunks = (body,)
                if self._in_hand is None and not self._waiting:
                    self._handle(request)
                else:
                    self._waiting.append(request)
                return
            self.since = self._server.now
            before = len(self._waiting)
            self._read(data)
            # Only what these bytes have brought: what was there before them is another message, with another's key.
            if end and len(self._waiting) == before + 1:
                brought = self._waiting[-1]
                if brought.complete and brought.head.length == len(body) and brought.method != "CONNECT":
                    self._repeated.learn(head, brought.head)
        else:
            self._read(data)
        self._pump()

    def pause_writing(self) -> None:
        self._full = True
        self._transport.pause_reading()
        self.since = self._server.now

    def resume_writing(self) -> None:
        self._full = False
        self.resume()
        self._pump()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._head_bytes = self._head_bytes or 1  # it may begin in the bytes that ended another one

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is None:  # what follows a chunked body is not ours to know
            repeated = self._repeated
            field = repeated.names.get(name) or repeated.name_of(name)
            text = repeated.texts.get(value) or repeated.text_of(value)
            if field in self._fields:
                self._fields[field].append(text)
            else:
                self._fields[field] = [text]

    def on_headers_complete(self) -> None:
        if self._reading is not None:
            return  # the head of a body, see _ignore_upgrade
        self._check_size()
        request = HttpRequest(self, read_head(self._parser, self._method, self._target, self._fields))
        self._reading = request
        self._waiting.append(request)
        if len(self._waiting) > PIPELINE_MAX:
            self._transport.pause_reading()

    def on_body(self, chunk: bytes) -> None:
        request = self._reading
        if request is not None:
            request.take(chunk)
            if request.held > BODY_BUFFER:
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        request = self._reading
        if request is not None:
            request.complete = True
            request.wake()
            if request.held > BODY_BUFFER:
                self.resume()
        self._reading = None
        self._head_bytes = 0
        self._method = ""
        self._target = b""
        self._fields = {}

    # Requests in, replies out, in order

    def _read(self, data: bytes) -> None:
        """Take messages until more wait than may: thousands fit into one read."""
        data = self._unread + data
        start = 0
        while start < len(data) and len(self._waiting) <= PIPELINE_MAX and not self._deaf:
            self._feed(data[start : start + PIECE])
            start += PIECE
        self._unread = data[start:]

    def _feed(self, data: bytes) -> None:
        self._head_bytes += len(data)
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as asked:
                data = data[asked.args[0] :] if self._ignore_upgrade() else b""
            except httptools.HttpParserInvalidMethodError:
                named = _METHOD(data)
                if named is None or self._head_bytes != len(data):  # another message came before it
                    self._reject(501 if named else 400)
                    return
                self._method = named[1].decode()
                self._parser = httptools.HttpRequestParser(self)
                data = b"PUT" + data[named.end(1) :]
            except httptools.HttpParserError as error:
                why = error.__context__
                self._reject(why.status if isinstance(why, Refused) else 400)
                return
        if self._reading is not None:
            if self._head_bytes > MESSAGE_MAX and self._reading.head.length < 0:
                self._reject(400)
        elif self._head_bytes > HEAD_MAX:
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
        request = self._waiting[-1]
        if request.method == "CONNECT":
            self._deaf = True
            return False
        request.complete = False
        self._reading = request
        self._parser = httptools.HttpRequestParser(self)
        length = request.head.length
        framing = b"Transfer-Encoding: chunked" if length < 0 else b"Content-Length: %d" % length
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        self._target = b""
        return True

    def _pump(self) -> None:
        """Answer what waits, in a loop: each answer calling for the next would be a stack as deep as the pipeline.

        After some of them it is the other connections' turn.
        """
        if self._pumping:
            return
        self._pumping = True
        answered = 0
        while self._waiting and self._in_hand is None and not self._full:
            if answered == PIPELINE_MAX:
                asyncio.get_running_loop().call_soon(self._pump)
                break
            if len(self._waiting) == PIPELINE_MAX:
                self._read(b"")
                self.resume()
            self._handle(self._waiting.popleft())
            answered += 1
        self._pumping = False
        if self._rejected is not None and self._in_hand is None and not self._waiting:
            self._reject_now(self._rejected)

    def _handle(self, request: HttpRequest) -> None:
        self._in_hand = request
        answer = self._server.app.answer(request)
        if request.complete:
            self._step(answer)
        else:
            self._server.run(self._answer(answer))

    def _step(self, answer: Coroutine[Any, Any, Reply], _: Any = None) -> None:
        """Go on with an answer until it is there or waits for something.

        A task would do the same, at a tenth of the time that a read takes. With a whole body all that an answer ever
        waits for are the futures of the store and of the gate: what needs a task makes its own.
        """
        try:
            future = answer.send(None)
        except StopIteration as done:
            self._finish(done.value)
        else:
            future.add_done_callback(functools.partial(self._step, answer))

    async def _answer(self, answer: Coroutine[Any, Any, Reply]) -> None:
        self._finish(await answer)

    def _finish(self, reply: Reply) -> None:
        request, self._in_hand = self._in_hand, None
        if request is None or self._transport.is_closing():
            return  # the client has gone
        # A body that was not read to its end would be taken for the next request.
        stays = request.complete and request.head.keep_alive and not self._server.closing
        stays = stays and reply.status not in CLOSING
        if self._deaf and not self._waiting and self._rejected is None:
            stays = False  # it is the last
        head = render(reply, stays=stays, date=self._server.date)
        body = reply.body if request.method != "HEAD" else b""
        if len(body) < LARGE:
            self._transport.write(head + body)
        else:  # not a copy for each client that takes its time
            self._transport.write(head)
            self._transport.write(body)
        self.since = self._server.now
        if not stays:
            self._close()
        elif self._waiting or self._rejected is not None:
            self._pump()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def resume(self) -> None:
        if len(self._waiting) <= PIPELINE_MAX and not self._full:
            self._transport.resume_reading()

    def _reject(self, status: int) -> None:
        """Read no more. After the answers that are due comes a last one, with no body and no headers of ours."""
        self._deaf = self._broken = True
        broken, self._reading = self._reading, None
        if broken is None:
            self._rejected = status
        else:
            broken.break_off()  # the last answer is its own

    def _reject_now(self, status: int) -> None:
        self._rejected = None
        REJECTED.add(str(status))
        if not self._transport.is_closing():
            head = f"{STATUS_LINES[status]}{self._server.date}connection: close\r\ncontent-length: 0\r\n\r\n"
            self._transport.write(head.encode())
            self.since = self._server.now
            self._close()

    def _close(self) -> None:
        """Close, but let a client that is still sending read its answer first: closing at once would reset it."""
        self._waiting.clear()
        self._rejected = None
        if not (self._reading or self._broken):
            self._transport.close()
        elif not self._transport.can_write_eof():
            self._hang_up()
        else:
            self._deaf = True
            self._reading = None
            self._head_bytes = 0
            self._transport.write_eof()
            self._transport.resume_reading()

    def _hang_up(self) -> None:
        """Close, with no more than a moment for a goodbye: over TLS a client could say anything but that for long."""
        self._transport.close()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def sweep(self, now: float) -> None:
        """Close what has been in its present state for too long."""
        waited = now - self.since
        if self._in_hand is not None or (self._reading is not None and not self._full):
            return  # a request is in hand; its own limits hold
        unsent = self._transport.get_write_buffer_size()
        if unsent > 0:
            if not self._unsent - WRITE_LEAST < unsent <= self._unsent:  # some was taken, or there is a new answer
                self._unsent, self.since = unsent, now
            elif waited > WRITE_SECONDS:
                self._transport.abort()
        elif waited > (LINGER_SECONDS if self._deaf else HEAD_SECONDS if self._head_bytes else IDLE_SECONDS):
            self._hang_up()

    def close_if_idle(self) -> None:
        if self._in_hand is not None or self._waiting:
            return
        if self._transport.get_write_buffer_size() > 0:
            self._transport.close()  # when all is sent
        else:
            self._hang_up()
