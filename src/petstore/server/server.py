"""All connections of one worker: what they share, what is done for them once a second, and how they end."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from email.utils import formatdate
from typing import Any, Protocol

from petstore.observability.metrics import CONNECTIONS
from petstore.server.head_cache import HeadCache
from petstore.web.app import App

DRAIN_SECONDS = 3.5


class Guest(Protocol):
    """A connection, as the server sees it."""

    lost: asyncio.Future[None]

    def sweep(self, now: float) -> None:
        """Close what has been in its present state for too long."""

    def close_if_idle(self) -> None: ...


class HttpServer:
    """What all connections of one worker share: the app, the time, and what clients repeat."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.connections: set[Guest] = set()
        self.closing = False
        self.repeated = HeadCache()
        self._tasks: set[asyncio.Task[None]] = set()
        self.tick()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tick(self) -> None:
        """Once a second."""
        self.date = f"date: {formatdate(usegmt=True)}\r\n"
        self.now = time.monotonic()
        self.repeated.age()
        CONNECTIONS.set(len(self.connections))
        for connection in list(self.connections):
            connection.sweep(self.now)

    async def drain(self) -> None:
        """Close what is idle, and wait for the rest to be answered, within a limit."""
        self.closing = True
        for connection in list(self.connections):
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self.connections:
                    await asyncio.shield(next(iter(self.connections)).lost)
