"""An ASGI application on our server: the messages that it receives, and how its responses end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness.in_process import Transport, connected, until
from petstore.server.asgi_bridge import AsgiBridge
from petstore.server.http_server import HttpServer

PART = b"x" * 10_000
GET = b"GET /file HTTP/1.1\r\nHost: here\r\n\r\n"


class Download:
    """Sends parts endlessly, or fails after some. Records the messages that it receives."""

    def __init__(self, parts: int, *, fails: bool) -> None:
        self._parts = parts
        self._fails = fails
        self.received: list[str] = []
        self.ended = False

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[..., Any]) -> None:
        try:
            await receive()
            listening = asyncio.create_task(self._listen(receive))
            headers = [(b"content-length", str(100 * len(PART)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for _ in range(self._parts):
                await send({"type": "http.response.body", "body": PART, "more_body": True})
            if self._fails:
                listening.cancel()
                raise ValueError("a test")
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            await listening
        finally:
            self.ended = True

    async def _listen(self, receive: Callable[[], Awaitable[Any]]) -> None:
        self.received.append((await receive())["type"])


def serve(app: Download) -> tuple[Any, Transport]:
    return connected(HttpServer(AsgiBridge(app, scheme="http", host="here", port=80)))


def test_a_response_arrives_whole_and_the_application_learns_that_it_is_over() -> None:
    async def work() -> None:
        app = Download(100, fails=False)
        connection, transport = serve(app)
        connection.data_received(GET)
        await until(lambda: app.ended)
        await until(lambda: len(transport.data.partition(b"\r\n\r\n")[2]) == 100 * len(PART))
        assert app.received == ["http.disconnect"] and not transport.closed

    asyncio.run(work())


@pytest.mark.parametrize("sent_before", [0, 3])
def test_a_client_that_goes_away_ends_the_application(sent_before: int) -> None:
    async def work() -> None:
        app = Download(10**9, fails=False)
        connection, transport = serve(app)
        if sent_before == 0:
            transport.closed = True  # before the first part
        connection.data_received(GET)
        await until(lambda: transport.closed or len(transport.data) > sent_before * len(PART))
        transport.close()
        connection.connection_lost(None)
        await until(lambda: app.received)
        assert app.received == ["http.disconnect"]

    asyncio.run(work())


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_response_that_fails_halfway_cuts_the_connection(parts: int) -> None:
    """A client must not mistake the next response for the rest of this one."""

    async def work() -> None:
        app = Download(parts, fails=True)
        connection, transport = serve(app)
        connection.data_received(GET + GET)
        await until(lambda: transport.aborted)
        assert transport.data.count(b"HTTP/1.1") == 1
        assert len(transport.data.partition(b"\r\n\r\n")[2]) <= parts * len(PART)

    asyncio.run(work())


def test_an_application_is_ended_when_the_client_has_gone_before_the_first_part() -> None:
    async def work() -> None:
        app = Download(100, fails=False)
        connection, transport = serve(app)
        connection.data_received(GET)
        transport.closed = True
        connection.connection_lost(ConnectionResetError())
        await until(lambda: app.ended)
        assert transport.data == b""

    asyncio.run(work())
