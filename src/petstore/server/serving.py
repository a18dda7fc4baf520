"""Serves connections in a worker until the worker is stopped or retired."""

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from petstore.observability.logs import bugs_logged
from petstore.server.connection import Connection
from petstore.server.http_server import HttpServer
from petstore.server.sockets import BACKLOG, Sockets
from petstore.server.tls import TlsTransport
from petstore.server.worker_process import COVER, PAUSE_MAX, RETIRE

ACCEPT_TURNS = 500  # event loop iterations after a stop signal; each one accepts one pending connection per socket
RETIRE_TIMEOUT = 60.0
COVER_SECONDS = 2 * PAUSE_MAX  # must exceed the longest interval between COVER signals
RETIRE_IDLE = 10.0  # seconds to keep idle connections open after a reload


async def serve_connections(
    server: HttpServer,
    sockets: Sockets,
    tls: ssl.SSLContext | None,
    ready: Callable[[], None],
    others: Sequence[socket.socket] = (),
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serves connections until a signal arrives.

    Returns within seconds of SIGTERM or SIGINT, and within about a minute of the RETIRE signal, which a reload sends.

    `others` are the other workers' sockets. After a COVER signal, this worker temporarily accepts connections on them.
    `stopping` is called when the shutdown begins.
    """
    loop = asyncio.get_running_loop()
    stop, retire, cover = asyncio.Event(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(RETIRE, retire.set)
    loop.add_signal_handler(COVER, cover.set)

    def protocol() -> asyncio.Protocol:
        return Connection(server) if tls is None else TlsTransport(server, tls)

    async def listen(each: socket.socket) -> asyncio.Server:
        return await loop.create_server(protocol, sock=each, backlog=BACKLOG)  # the default backlog is 100

    listeners = [await listen(each) for each in sockets]
    ticking = asyncio.create_task(_tick(server))
    covering = asyncio.create_task(_cover(others, listen, cover))
    ready()
    await _first(stop.wait(), retire.wait())
    stopping()
    if stop.is_set():
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
    covering.cancel()
    for listener in listeners:
        listener.close()
    if not stop.is_set():
        await _first(server.drain(RETIRE_TIMEOUT, idle=RETIRE_IDLE), stop.wait())
    await server.drain()
    ticking.cancel()


async def _tick(server: HttpServer) -> None:
    while True:
        await asyncio.sleep(1)
        with bugs_logged():
            server.tick()


async def _cover(
    others: Sequence[socket.socket], listen: Callable[[socket.socket], Awaitable[asyncio.Server]], cover: asyncio.Event
) -> None:
    """Accepts connections on the sockets of a worker that died and cannot be replaced yet.

    The kernel keeps assigning new connections to those sockets.
    """
    while await cover.wait():
        listeners: list[asyncio.Server] = []
        try:
            for each in others:
                listeners += [await listen(each.dup())]  # use a copy, because closing a listener also closes its socket
            with contextlib.suppress(TimeoutError):
                while cover.is_set():
                    cover.clear()
                    await asyncio.wait_for(cover.wait(), COVER_SECONDS)
        except OSError:  # such as too many open files; the main process will repeat COVER if necessary
            cover.clear()
        finally:
            for listener in listeners:
                listener.close()


async def _first(*works: Coroutine[Any, Any, object]) -> None:
    """Waits until one of the coroutines finishes, and cancels the others."""
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
