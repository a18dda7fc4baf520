"""Runs an ASGI application on Petstore's own HTTP server, with the server's limits and timeouts."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from petstore.errors import BodyTooLarge
from petstore.server.bodies import BrokenOff
from petstore.server.messages import RequestMessage

BODY_TIMEOUT = 20.0  # seconds to wait for more bytes of a request body
REJECTION = b"The request is not valid HTTP/1.1, is too large or arrived too slowly.\n"

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
logger = logging.getLogger("petstore")


class AsgiResponse(NamedTuple):
    """A response from the application. If `stream` is set, `headers` must include the content length."""

    status: int
    headers: str
    body: bytes
    stream: AsyncIterator[bytes] | None = None


class AsgiBridge:
    def __init__(self, app: AsgiApp, *, scheme: str, host: str, port: int) -> None:
        self._app = app
        self._scheme = scheme
        self._server = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, request: RequestMessage) -> AsgiResponse:
        exchange = _Exchange(request)
        task = asyncio.get_running_loop().create_task(self._run(request, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await exchange.response()

    async def reject(self, status: int, peer: str) -> AsgiResponse:
        return AsgiResponse(status, "content-type: text/plain; charset=utf-8\r\n", REJECTION)

    async def _run(self, request: RequestMessage, exchange: "_Exchange") -> None:
        try:
            await self._app(self._scope(request), exchange.receive, exchange.send)
        except Exception:
            logger.exception("internal error")
        finally:
            await exchange.end()

    def _scope(self, request: RequestMessage) -> MutableMapping[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": self._scheme,
            "path": request.path,
            "raw_path": request.path.encode("utf-8", "surrogateescape"),
            "query_string": request.query.encode("latin-1"),
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.fields.items()],
            "client": (request.peer, 0),
            "server": self._server,
        }


class _Exchange:
    """Exchanges ASGI messages with the application for one request and its response."""

    def __init__(self, request: RequestMessage) -> None:
        self._request = request
        self._body_ended = False
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        # Parts of the response body, each with a flag that says whether more parts follow. None means that the
        # application returned before its response was complete.
        self._parts: asyncio.Queue[tuple[bytes, bool] | None] = asyncio.Queue(1)
        # Set when the response is complete, the application has returned, or the client has disconnected.
        self._over = asyncio.Event()

    async def receive(self) -> Message:
        if self._body_ended:
            await self._over.wait()
            return {"type": "http.disconnect"}
        stream = self._request.stream
        if stream is None:
            self._body_ended = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                part = await stream.read()
        except (BodyTooLarge, BrokenOff, TimeoutError):
            self._body_ended = True
            return {"type": "http.disconnect"}
        self._body_ended = not part
        return {"type": "http.request", "body": part, "more_body": bool(part)}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            more = bool(message.get("more_body", False))
            if self._over.is_set():
                await asyncio.sleep(0)  # drop the part, but yield to other tasks in case the app never stops sending
            else:
                await self._parts.put((bytes(message.get("body", b"")), more))
            if not more:
                self._over.set()

    async def end(self) -> None:
        """Ends the exchange. Called when the application returns, whether or not its response is complete."""
        if not self._over.is_set():
            await self._parts.put(None)
            self._over.set()

    async def response(self) -> AsgiResponse:
        first = await self._parts.get()
        if first is None:
            return AsgiResponse(500, "content-type: text/plain\r\n", b"Something went wrong.\n")
        body, more = first
        streamed = more or self._request.method == "HEAD"
        if (b"connection", b"close") in self._headers:
            self._request.keep_alive = False
        headers = "".join(
            f"{name.decode('latin-1')}: {value.decode('latin-1')}\r\n"
            for name, value in self._headers
            if name != b"connection" and (streamed or name != b"content-length")  # the server adds these
        )
        return AsgiResponse(self._status, headers, body, self._stream(body, more) if streamed else None)

    async def _stream(self, first: bytes, more: bool) -> AsyncIterator[bytes]:
        """Yields the parts of the body. Raises BrokenOff if the application returns before the body is complete."""
        try:
            if first:
                yield first
            while more:
                part = await self._parts.get()
                if part is None:
                    raise BrokenOff
                body, more = part
                yield body
        finally:  # unblock the application, in case the client has disconnected
            self._over.set()
            while not self._parts.empty():
                self._parts.get_nowait()
