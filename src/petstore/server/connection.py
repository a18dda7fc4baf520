"""Handles one connection: reads requests, sends responses in order, and decides when to close the connection.

A connection times out if a request's headers arrive too slowly, if the connection is idle for too long, or if the
client does not read its responses. After the last response, the connection accepts only a limited amount of data from
the client. Each connection reports its memory use to `HttpServer`, which limits the total.
"""

import asyncio
import contextlib
import http
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Hashable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from petstore.server.bodies import BrokenOff
from petstore.server.messages import PIPELINE_MAX, MessageReader, RequestMessage

if TYPE_CHECKING:
    from petstore.server.http_server import HttpServer, Response

HEAD_TIMEOUT = 8.0
IDLE_TIMEOUT = 75.0
WRITE_TIMEOUT, WRITE_LEAST = 20.0, 32 * 1024  # clients must read at least WRITE_LEAST bytes every WRITE_TIMEOUT seconds
WRITE_HIGH = 16 * 1024  # above this many unsent bytes, the connection stops reading requests and pauses streaming
PART_MAX = 32 * 1024  # maximum bytes of a response body to write at a time
LINGER_TIMEOUT, LINGER_MAX = 2.0, 512 * 1024  # limits, in seconds and bytes, on reading after the last response
UNKNOWN_PEER = "unknown"  # used if the connection is reset before the client's address can be read
LARGE = 16 * 1024  # bytes; a smaller body is copied and sent with the headers, and a larger one is written separately
CLOSING = (408, 413)  # statuses after which the connection closes instead of reading the rest of the body
CONNECTION_COST = 16 * 1024  # estimated bytes of memory for a connection with up to three small requests
UNCOUNTED_MAX = 4 * 1024  # bytes; requests up to this size are not counted, because CONNECTION_COST includes them
HELD_FACTOR = 2  # estimated bytes of memory per buffered byte, allowing for copies and fragmentation

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in http.HTTPStatus}

logger = logging.getLogger("petstore")


class Connection(asyncio.Protocol):
    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._messages = MessageReader(self, server.field_names)
        self._in_flight: RequestMessage | None = None
        self._rejecting = False  # whether a malformed message is being rejected
        # One task handles all of the connection's requests, because creating a task for each request would be slower.
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None  # the task awaits this future between requests
        self._write_paused = False  # whether writing has paused because the client is not reading its responses
        self._lingers = False  # whether the last response has been sent, so that further data is discarded
        self._writable: asyncio.Future[None] | None = None  # a streamed response awaits this while writing is paused
        self._written = 0  # bytes of responses written so far
        self._taken = 0  # bytes of responses that had been sent at `_taken_at`
        self._taken_at = server.now
        self._bytes_after_end = 0  # bytes received after the last request
        self.since = server.now  # when the current state (idle, receiving headers, writing paused or lingering) began
        self.peer = ""
        self.group: Hashable = None  # the group that the client's address belongs to
        # Estimated bytes of memory: `cost` is the amount for an idle connection, and `held` is the current amount.
        self.cost = self.held = CONNECTION_COST

    # Methods called by the event loop

    def connection_made(self, transport: Any) -> None:
        self.attach(transport)
        if not self._server.accept(self):
            transport.abort()

    def attach(self, transport: Any) -> None:
        """Sets the transport. With TLS, this is called before the handshake."""
        self._transport: asyncio.Transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH)
        peer = transport.get_extra_info("peername")
        self.peer = "" if peer == "" else str(peer[0]) if peer else UNKNOWN_PEER  # a Unix socket has no address

    def connection_lost(self, error: Exception | None) -> None:
        self._server.forget(self)
        self._messages.end()
        self._messages.waiting.clear()
        self._wake_writer()
        if self._idle is not None:
            self._idle.cancel()  # end the idle task; a request in flight still runs to completion
        self._task = None  # break a reference cycle between the task, the reader and this object

    def eof_received(self) -> bool:
        """Keeps the connection open if requests are pending, because the client may still be reading."""
        self._messages.end()
        return self._in_flight is not None or self._rejecting or bool(self._messages.waiting)

    def data_received(self, data: bytes) -> None:
        messages = self._messages
        if messages.over:
            messages.sends_on = True
            self._bytes_after_end += len(data)
            if self._bytes_after_end > LINGER_MAX:
                self._transport.abort()
            return
        if not messages.within_head and not data.isspace():  # empty lines do not reset the idle timeout
            self.since = self._server.now
        messages.feed(data, perf_counter())
        if self._in_flight is None:
            self._next()
        if messages.received > UNCOUNTED_MAX:
            self._count()

    def pause_writing(self) -> None:
        self._write_paused = True
        self.update_reading()
        self.since = self._server.now
        self._count()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._count()
        self._wake_writer()
        self.update_reading()
        if self._in_flight is None:
            self._next()

    def _wake_writer(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # Methods called by MessageReader and BodyStream

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def update_reading(self) -> None:
        """Pauses or resumes reading. Must be called whenever a reason for pausing appears or disappears."""
        if self._lingers or not (self._write_paused or self._messages.is_full):
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # Requests and responses

    def _next(self) -> None:
        """Starts the next waiting request, or rejects a malformed message."""
        messages = self._messages
        if self._write_paused:
            return
        if messages.waiting:
            self._in_flight = messages.waiting.popleft()
            if self._task is None:
                self._start(self._answer_requests())
            elif self._idle is not None:
                self._idle.set_result(None)
                self._idle = None
            if len(messages.waiting) == PIPELINE_MAX - 1:  # there is now room for one more request
                messages.feed(b"", perf_counter())
                self.update_reading()
        elif messages.rejected is not None:
            status, messages.rejected = messages.rejected, None
            self._rejecting = True
            self._start(self._reject(status))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._server.create_task(work)
        self._task.add_done_callback(self._ended)

    async def _answer_requests(self) -> None:
        server, messages = self._server, self._messages
        while (request := self._in_flight) is not None:
            response = await server.app.answer(request)
            head_only = request.method == "HEAD"
            stream = request.stream
            # Close the connection if the body was not read completely. Otherwise, the rest of the body would be
            # mistaken for the next request.
            complete = stream is None or stream.complete
            stays = complete and request.keep_alive and not server.closing and response.status not in CLOSING
            if messages.over and not messages.waiting and messages.rejected is None:
                stays = False
            if response.stream is not None or (len(response.body) > PART_MAX and not head_only):
                if not await self._send_parts(response, stays=stays, head_only=head_only):
                    return
            else:
                self._in_flight = None
                if self._transport.is_closing():
                    return  # the client has disconnected
                self._send(response, stays=stays, head_only=head_only)
            self.since = server.now
            if messages.received > UNCOUNTED_MAX or self.held != self.cost:
                self._count()
            messages.received = 0
            if not stays:
                self._close()
                return
            if messages.waiting or messages.rejected is not None:
                self._next()
            if self._in_flight is None:
                self._idle = server.create_future()
                await self._idle
            else:
                await asyncio.sleep(0)  # a client that pipelines many requests must not delay other clients

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Aborts the connection if a bug made its task fail. Otherwise, the client would wait forever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("internal error", exc_info=error)
            self._transport.abort()

    async def _reject(self, status: int) -> None:
        """Sends an error response to a message that is not a valid request, and closes the connection."""
        response = await self._server.app.reject(status, self.peer)
        self._rejecting = False
        if not self._transport.is_closing():
            self._send(response, stays=False, head_only=self._messages.rejects_head)
            self.since = self._server.now
            self._close()

    def _send(self, response: "Response", *, stays: bool, head_only: bool) -> None:
        body = response.body
        length = "" if response.status in (204, 304) else f"content-length: {len(body)}\r\n"
        close = "" if stays else "connection: close\r\n"
        head = f"{STATUS_LINES[response.status]}{self._server.date}{response.headers}{length}{close}\r\n"
        data = head.encode("latin-1")
        if body and not head_only:
            if len(body) < LARGE:
                data += body
            else:
                self.write(data)
                data = body
        self._written += len(data)
        self._transport.write(data)

    async def _send_parts(self, response: "Response", *, stays: bool, head_only: bool) -> bool:
        """Sends a body in parts, no faster than the client reads. Returns whether the whole body was sent."""
        parts = response.stream or _parts_of(response.body)
        length = "" if response.stream is not None else f"content-length: {len(response.body)}\r\n"
        close = "" if stays else "connection: close\r\n"
        head = f"{STATUS_LINES[response.status]}{self._server.date}{response.headers}{length}{close}\r\n"
        try:
            async with contextlib.aclosing(cast("AsyncGenerator[bytes, None]", parts)) as sending:
                if self._transport.is_closing():
                    # Start the generator, because `aclose` skips a `finally` block if the generator has not started.
                    await anext(sending, None)
                    return False
                self.write(head.encode("latin-1"))
                async for part in sending:
                    if self._transport.is_closing():
                        return False
                    if not head_only:
                        self.write(part)
                    while self._write_paused and not self._transport.is_closing():  # `sweep` enforces WRITE_TIMEOUT
                        self._writable = self._server.create_future()
                        await self._writable
        except BrokenOff:  # abort, so that the client does not mistake the next response for the rest of this body
            self._transport.abort()
            return False
        finally:
            self._in_flight = None
        return True

    # Memory

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def _count(self) -> None:
        held = self._messages.held + (self._in_flight.held if self._in_flight is not None else 0)
        counted = held if held > UNCOUNTED_MAX else 0
        self._server.hold(self, self.cost + HELD_FACTOR * (counted + self.unsent_bytes))

    # Closing

    def _close(self) -> None:
        """Closes the connection.

        If the client is still sending, gives it time to read the response first, because closing immediately would
        reset the connection and the client might lose the response.
        """
        messages = self._messages
        sends_on = messages.within_body or messages.sends_on
        messages.waiting.clear()
        messages.rejected = None
        messages.end()
        if not sends_on:
            self._transport.close()
        else:
            self._transport.write_eof()
            self._lingers = True
            self.update_reading()

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """Closes the connection if one of its timeouts has expired. Called once a second."""
        messages = self._messages
        unsent = self.unsent_bytes
        if unsent or self.held != self.cost:
            self._count()
        taken = self._written - unsent
        if not unsent or taken >= self._taken + WRITE_LEAST:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at > WRITE_TIMEOUT:
            self._transport.abort()
        if unsent:
            self.since = now  # the connection is not idle until the client has read everything
            return
        waited = now - self.since
        if self._in_flight is not None or self._rejecting or (messages.within_body and not self._write_paused):
            return  # the application's timeouts apply
        if messages.over:
            if waited > LINGER_TIMEOUT:
                self._transport.close()
        elif messages.within_head:
            if waited > HEAD_TIMEOUT:
                self.since = now
                messages.reject(408)
                self._next()
        elif waited > IDLE_TIMEOUT:
            self._transport.close()

    @property
    def had_request(self) -> bool:
        """Whether the client has sent a request, or part of one that is not valid."""
        return self._task is not None

    def close_if_idle(self) -> None:
        if self._in_flight is None and not self._rejecting and not self._messages.waiting:
            self._transport.close()  # sends buffered data first


async def _parts_of(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PART_MAX):
        yield body[start : start + PART_MAX]
