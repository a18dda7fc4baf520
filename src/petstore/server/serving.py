"""Serves connections until the process ends."""

import asyncio
import select
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from petstore.observability.logs import bugs_logged
from petstore.server.connection import Connection
from petstore.server.http_server import DRAIN_TIMEOUT, HttpServer
from petstore.server.sockets import BACKLOG, Sockets
from petstore.server.tls import TlsTransport

ACCEPT_SECONDS = 0.5  # on shutdown, maximum time to accept the connections that are waiting
RETIRE_TIMEOUT = 60.0
RETIRE_IDLE = 10.0  # seconds to keep idle connections open after a reload


class Ending:
    """Tells `serve_connections` to end. A signal or a command from the main process sets the events."""

    def __init__(self) -> None:
        self.retire = asyncio.Event()  # end within about a minute, because another process accepts new connections
        self.stop = asyncio.Event()  # end within `seconds`
        self.seconds = DRAIN_TIMEOUT


async def serve_connections(
    server: HttpServer,
    sockets: Sockets,
    tls: ssl.SSLContext | None,
    ready: Callable[[], None],
    ending: Ending,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serves connections until `ending` says so. Calls `stopping` when it no longer accepts connections."""
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.Protocol:
        return Connection(server) if tls is None else TlsTransport(server, tls)

    # The default backlog is 100.
    listeners = [await loop.create_server(protocol, sock=each, backlog=BACKLOG) for each in sockets]
    ticking = asyncio.create_task(_tick(server))
    ready()
    await _first(ending.stop.wait(), ending.retire.wait())
    if ending.stop.is_set():
        await _accept_waiting(sockets)
    for listener in listeners:
        listener.close()
    stopping()
    if not ending.stop.is_set():
        await _first(server.drain(RETIRE_TIMEOUT, idle=RETIRE_IDLE), ending.stop.wait())
    if ending.stop.is_set():
        await server.drain(ending.seconds)
    ticking.cancel()


async def _accept_waiting(sockets: Sockets) -> None:
    """Runs the event loop, which accepts connections, until no connection is waiting."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    deadline = asyncio.get_running_loop().time() + ACCEPT_SECONDS
    while poll.poll(0) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110  # polls for half a second
        await asyncio.sleep(0)


async def _tick(server: HttpServer) -> None:
    while True:
        await asyncio.sleep(1)
        with bugs_logged():
            server.tick()


async def _first(*works: Coroutine[Any, Any, object]) -> None:
    """Waits until one of the coroutines finishes, and cancels the others."""
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
