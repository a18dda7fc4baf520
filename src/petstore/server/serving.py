"""One worker's server, from its first accepted connection to its last response."""

import asyncio
import signal
import ssl
from collections.abc import Callable

from petstore.server.connection import HEAD_TIMEOUT, WRITE_TIMEOUT, Connection
from petstore.server.http_server import HttpServer
from petstore.server.workers import RETIRE, Sockets

ACCEPT_TURNS = 500  # turns of the event loop after the signal: each accepts one connection that waits already
RETIRE_TIMEOUT = 60.0
RETIRE_IDLE = 10.0  # after a reload, connections may be idle so long: a client that is active moves over by itself


async def serve_connections(
    server: HttpServer, sockets: Sockets, tls: ssl.SSLContext | None, ready: Callable[[], None]
) -> None:
    """Accept and answer until SIGTERM or SIGINT, which is a matter of seconds, or until retired by a reload."""
    loop = asyncio.get_running_loop()
    stop, retire = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(RETIRE, retire.set)

    def connection() -> Connection:
        made = Connection(server)
        if tls:
            server.handshaking.add(made)
        return made

    listeners = [
        await loop.create_server(
            connection,
            sock=each,
            ssl=tls,
            ssl_handshake_timeout=HEAD_TIMEOUT if tls else None,
            ssl_shutdown_timeout=WRITE_TIMEOUT if tls else None,
        )
        for each in sockets
    ]
    ready()
    await _first(stop, retire)
    if stop.is_set():
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
    for listener in listeners:
        listener.close()
    if not stop.is_set():
        draining = asyncio.ensure_future(server.drain(RETIRE_TIMEOUT, idle=RETIRE_IDLE))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([draining, stopping], return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        stopping.cancel()
    await server.drain()


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
