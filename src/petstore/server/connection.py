"""The adapter to HTTP/1.1 itself: production. Bytes in, the pipeline, bytes out, all in one thread.

`framing.py` reads the messages. A connection answers them in order and decides when it ends. What is bounded: the time
of a head, the time a connection may be idle or not take its answers, and what it may still say when it is over.
"""

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any

from petstore.observability.metrics import REJECTED
from petstore.server.framing import PIPELINE_MAX, Messages
from petstore.server.messages import CLOSING, STATUS_LINES, HttpRequest, render
from petstore.server.server import HttpServer
from petstore.web.replies import Reply

HEAD_SECONDS = 8.0
IDLE_SECONDS = 75.0
WRITE_SECONDS, WRITE_LEAST = 20.0, 32 * 1024  # a client takes at least so much in that time, or is gone
LARGE = 16 * 1024
LINGER_SECONDS = 2.0
LINGER_MAX = 512 * 1024


class Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._messages = Messages(self, server.repeated)
        self._in_flight: HttpRequest | None = None  # being answered
        self._pumping = False
        self._full = False  # the client does not take its answers
        self._unsent = 0  # bytes of them, when it last took some
        self._ignored = 0  # bytes that came when no more was read
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
        self._messages.end()
        self._messages.waiting.clear()

    def eof_received(self) -> bool:
        """The client says no more, but may still listen: what it has asked for is answered first."""
        self._messages.end()
        asked = self._in_flight is not None or bool(self._messages.waiting)
        return asked and self._transport.can_write_eof()  # TLS has no half-closed connections

    def data_received(self, data: bytes) -> None:
        messages = self._messages
        if messages.over:
            self._ignored += len(data)
            if self._ignored > LINGER_MAX:
                self._transport.abort()
        elif messages.size or messages.unread:  # within a message
            messages.read(data)
            self._pump()
        else:
            request = messages.recall(data)
            if request is None:
                self.since = self._server.now
                messages.read_and_learn(data)
                self._pump()
            elif self._in_flight is None and not messages.waiting:
                self._handle(request)
            else:
                messages.waiting.append(request)

    def pause_writing(self) -> None:
        self._full = True
        self._transport.pause_reading()
        self.since = self._server.now

    def resume_writing(self) -> None:
        self._full = False
        self.resume()
        self._pump()

    # What a request and those that are being read call

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def pause(self) -> None:
        self._transport.pause_reading()

    def resume(self) -> None:
        if len(self._messages.waiting) <= PIPELINE_MAX and not self._full:
            self._transport.resume_reading()

    # Requests in, replies out, in order

    def _pump(self) -> None:
        """Answer what waits, in a loop: each answer calling for the next would be a stack as deep as the pipeline.

        After some of them it is the other connections' turn.
        """
        if self._pumping:
            return
        self._pumping = True
        messages = self._messages
        answered = 0
        while messages.waiting and self._in_flight is None and not self._full:
            if answered == PIPELINE_MAX:
                asyncio.get_running_loop().call_soon(self._pump)
                break
            if len(messages.waiting) == PIPELINE_MAX:
                messages.read(b"")
                self.resume()
            self._handle(messages.waiting.popleft())
            answered += 1
        self._pumping = False
        if messages.rejected is not None and self._in_flight is None and not messages.waiting:
            self._reject(messages.rejected)

    def _handle(self, request: HttpRequest) -> None:
        self._in_flight = request
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
        request, self._in_flight = self._in_flight, None
        if request is None or self._transport.is_closing():
            return  # the client has gone
        messages = self._messages
        # A body that was not read to its end would be taken for the next request.
        stays = request.complete and request.head.keep_alive and not self._server.closing
        stays = stays and reply.status not in CLOSING
        if messages.over and not messages.waiting and messages.rejected is None:
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
        elif messages.waiting or messages.rejected is not None:
            self._pump()

    def _reject(self, status: int) -> None:
        """The last answer, to a message that never became a request: no body, and no headers of ours."""
        self._messages.rejected = None
        REJECTED.add(str(status))
        if not self._transport.is_closing():
            head = f"{STATUS_LINES[status]}{self._server.date}connection: close\r\ncontent-length: 0\r\n\r\n"
            self._transport.write(head.encode())
            self.since = self._server.now
            self._close()

    # How it ends

    def _close(self) -> None:
        """Close, but let a client that is still sending read its answer first: closing at once would reset it."""
        messages = self._messages
        messages.waiting.clear()
        messages.rejected = None
        if not (messages.reading or messages.broken):
            self._transport.close()
        elif not self._transport.can_write_eof():
            self._hang_up()
        else:
            messages.end()
            self._transport.write_eof()
            self._transport.resume_reading()

    def _hang_up(self) -> None:
        """Close, with no more than a moment for a goodbye: over TLS a client could say anything but that for long."""
        self._transport.close()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def sweep(self, now: float) -> None:
        """Close what has been in its present state for too long."""
        messages = self._messages
        waited = now - self.since
        if self._in_flight is not None or (messages.reading is not None and not self._full):
            return  # a request is in hand; its own limits hold
        unsent = self._transport.get_write_buffer_size()
        if unsent > 0:
            if not self._unsent - WRITE_LEAST < unsent <= self._unsent:  # some was taken, or there is a new answer
                self._unsent, self.since = unsent, now
            elif waited > WRITE_SECONDS:
                self._transport.abort()
        elif waited > (LINGER_SECONDS if messages.over else HEAD_SECONDS if messages.size else IDLE_SECONDS):
            self._hang_up()

    def close_if_idle(self) -> None:
        if self._in_flight is not None or self._messages.waiting:
            return
        if self._transport.get_write_buffer_size() > 0:
            self._transport.close()  # when all is sent
        else:
            self._hang_up()
