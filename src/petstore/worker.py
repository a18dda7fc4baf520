"""`python -m petstore.worker`: one worker process. The main process starts it with a channel as standard input."""

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator

import uvloop

from petstore.errors import PetstoreError
from petstore.observability import logs
from petstore.observability.logs import event, logger
from petstore.server.channel import CONNECTIONS, DRAIN, FAILED, OPENING, READY, RETIRE, STOP, Channel, Order
from petstore.server.http_server import HttpServer
from petstore.server.serving import Ending, serve_connections
from petstore.server.sockets import inherited
from petstore.service import Service, http_server
from petstore.web.app import App
from petstore.web.requests import FIELDS

OPENING_EVERY = 3.0  # seconds between reports that the store is still opening


def main() -> None:
    logs.configure()
    sys.exit(uvloop.run(_run()))


async def _run() -> int:
    """Runs the worker. Returns the exit code."""
    channel = await Channel.open()
    try:
        await _serve(channel, await channel.order())
    except PetstoreError as error:
        channel.report(FAILED, str(error))
        return 1
    except Exception as error:
        logger.exception("worker failed")
        channel.report(FAILED, f"{type(error).__name__}: {error}")
        return 1
    return 0


async def _serve(channel: Channel, order: Order) -> None:
    """Serves requests until the main process says otherwise. Raises PetstoreError if the worker cannot start."""
    service = Service(order.settings)
    with _reporting(channel):
        app = await service.start(order.running)
    server, ending = http_server(order.settings, app, FIELDS), Ending()
    following = asyncio.create_task(_follow(channel, server, app, ending))
    sockets = [inherited(each) for each in order.sockets]
    await serve_connections(server, sockets, service.tls, lambda: channel.report(READY), ending, app.end_delays)
    await service.stop()
    following.cancel()


async def _follow(channel: Channel, server: HttpServer, app: App, ending: Ending) -> None:
    """Follows the main process's commands. Exits if it dies, because an orphan would hold the port forever."""
    async for command, argument in channel.commands():
        if command == DRAIN:
            app.drain()
            channel.report(CONNECTIONS, str(server.begin_closing()))
        elif command == RETIRE:
            ending.retire.set()
        elif command == STOP:
            ending.seconds = float(argument)
            ending.stop.set()
    event(logging.ERROR, "supervisor gone")
    os._exit(1)


@contextlib.contextmanager
def _reporting(channel: Channel) -> Iterator[None]:
    """Reports every few seconds that the store is still opening.

    Uses a thread, because a migration in SQLite blocks the event loop.
    """
    opened = threading.Event()

    def report() -> None:
        while not opened.wait(OPENING_EVERY):
            channel.report(OPENING)

    threading.Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        opened.set()


if __name__ == "__main__":
    main()
