"""Connections of our HTTP server in this process: what stands at either end of them."""

import asyncio
from collections.abc import Callable
from typing import Any

from petstore.server.connection import Connection
from petstore.server.server import HttpServer
from petstore.web.app import App
from petstore.web.replies import Reply
from petstore.web.requests import Request


class Slow:
    """An app on backends that are elsewhere: answers wait until they may go."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.may_go = asyncio.Event()

    async def answer(self, request: Request) -> Reply:
        await asyncio.ensure_future(self.may_go.wait())
        return await self._app.answer(request)


class Written:
    """The other end of a connection: all that was written to it, and what it has not taken."""

    def __init__(self) -> None:
        self.data = b""
        self.unsent = 0
        self.reading = True
        self.aborted = False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes) -> None:
        self.data += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.aborted = True

    def __getattr__(self, _: str) -> Callable[..., Any]:
        return lambda *_: None


def connected(server: HttpServer) -> tuple[Connection, Written]:
    """A connection by hand."""
    connection, end = Connection(server), Written()
    connection.connection_made(end)
    return connection, end


def only(server: HttpServer) -> Connection:
    """The one connection that there is."""
    (connection,) = server.connections
    assert isinstance(connection, Connection)
    return connection
