"""Manages a worker's connections: limits their number and memory use, and drains them on shutdown."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from email.utils import formatdate
from typing import Any, Protocol

from petstore.observability.logs import Throttled
from petstore.observability.metrics import CONNECTIONS, REFUSED_CONNECTIONS
from petstore.server.connection import Connection
from petstore.server.messages import FieldNames, RequestMessage

DRAIN_TIMEOUT = 3.5
MEMORY_MAX = 256 * 1024 * 1024  # maximum bytes of memory for all of a worker's connections
MEMORY_AFTER = MEMORY_MAX * 7 // 8  # if MEMORY_MAX is exceeded, connections are closed until memory use drops to this
TLS_COST = 64 * 1024  # estimated bytes of memory for a TLS connection
HANDSHAKES_TIMEOUT = 2.0  # on shutdown, seconds to wait for TLS handshakes in progress
FIRST_REQUEST_TIMEOUT = 0.5  # on shutdown, seconds to wait for the first request on a new connection


class Response(Protocol):
    """A response from the application. `headers` consists of complete header lines, including the line endings."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> str: ...

    @property
    def body(self) -> bytes: ...

    @property
    def stream(self) -> AsyncIterator[bytes] | None:
        """The parts of the body, or None if `body` is complete. If set, `headers` must include the content length."""


class Application(Protocol):
    """The interface between the server and the application. Its methods must not raise exceptions."""

    async def answer(self, request: RequestMessage) -> Response: ...

    async def reject(self, status: int, peer: str) -> Response:
        """Returns the response to a message that is malformed, is too large or arrives too slowly."""


class HttpServer:
    def __init__(
        self,
        app: Application,
        fields: frozenset[str] | None = None,
        *,
        connections_max: int = 60_000,
        per_address_max: int = 60_000,
        is_exempt: Callable[[str], bool] = lambda address: False,
        group_of: Callable[[str], Hashable] = str,
    ) -> None:
        """`fields` are the header fields that the application reads. None means all fields.

        `group_of` maps an address to a group, such as its network, whose addresses share one connection limit.
        `is_exempt` says whether an address, such as a trusted proxy's, is exempt from that limit.
        """
        self.app = app
        self.field_names = FieldNames(fields)
        self.connections: set[Connection] = set()
        self._handshaking: set[Connection] = set()
        self.closing = False
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._is_exempt = is_exempt
        self._group_of = group_of
        self._of_address: Counter[Hashable] = Counter()
        self.held = 0  # bytes of memory that all connections use together
        self._refusals = Throttled("connection refused")
        loop = asyncio.get_running_loop()
        self.create_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]] = loop.create_task
        self.create_future: Callable[[], asyncio.Future[None]] = loop.create_future
        self._drained = asyncio.Event()
        self.tick()

    def accept(self, connection: Connection) -> bool:
        """Adds a connection. Returns False if there are already too many connections."""
        self.end_handshake(connection)
        self._drained.clear()  # the event may have been set during the handshake
        return self._enter(self.connections, connection)

    def begin_handshake(self, connection: Connection) -> bool:
        """Adds a connection before its TLS handshake. Returns False if there are already too many connections."""
        connection.cost = connection.held = TLS_COST
        return self._enter(self._handshaking, connection)

    def end_handshake(self, connection: Connection) -> None:
        self._leave(self._handshaking, connection)

    def forget(self, connection: Connection) -> None:
        self._leave(self.connections, connection)
        if self.closing and not self.connections:
            self._drained.set()

    def _enter(self, connections: set[Connection], connection: Connection) -> bool:
        address = connection.peer
        group = connection.group = self._group_of(address)
        if len(self.connections) + len(self._handshaking) >= self._connections_max:
            self.refuse("total", "too many connections", address)
            return False
        if self._of_address[group] >= self._per_address_max and not self._is_exempt(address):
            self.refuse("per_address", "too many connections from one address", address)
            return False
        connections.add(connection)
        self._of_address[group] += 1
        self.held += connection.held
        if self.held > MEMORY_MAX:
            self._close_largest()
        return True

    def _leave(self, connections: set[Connection], connection: Connection) -> None:
        if connection in connections:
            connections.remove(connection)
            self.held -= connection.held
            group = connection.group
            self._of_address[group] -= 1
            if not self._of_address[group]:
                del self._of_address[group]

    def hold(self, connection: Connection, held: int) -> None:
        """Records how many bytes of memory a connection currently uses."""
        if connection in self.connections:
            self.held += held - connection.held
            connection.held = held
            if self.held > MEMORY_MAX:
                self._close_largest()

    def _close_largest(self) -> None:
        """Closes the largest connections, starting with the group of addresses that uses the most memory."""
        held: Counter[Hashable] = Counter()
        for each in (*self.connections, *self._handshaking):
            held[each.group] += each.held
        order = sorted(
            (*self.connections, *self._handshaking),
            key=lambda each: (held[each.group], each.held, -each.since),
            reverse=True,
        )
        for each in order:
            if self.held <= MEMORY_AFTER:
                break
            self.refuse("memory", "connections use too much memory", each.peer)
            self._leave(self.connections, each)
            self._leave(self._handshaking, each)
            each.abort()

    def refuse(self, reason: str, cause: str, address: str) -> None:
        """Counts and logs a connection that was refused or closed because of a limit."""
        REFUSED_CONNECTIONS.add(reason)
        self._refusals.event(time.monotonic(), cause, address=address)

    def tick(self) -> None:
        """Updates the date and the metrics, and checks every connection's timeouts. Called once a second."""
        self.date = f"date: {formatdate(usegmt=True)}\r\n"
        self.now = time.monotonic()
        CONNECTIONS.set(len(self.connections))
        self._refusals.flush(self.now)
        for connection in list(self.connections):
            connection.sweep(self.now)

    def begin_closing(self) -> int:
        """Closes each connection after its next response. Returns the number of open connections."""
        self.closing = True
        return len(self.connections) + len(self._handshaking)

    async def drain(self, limit: float = DRAIN_TIMEOUT, *, idle: float = 0.0) -> None:
        """Closes idle connections after `idle` seconds, and other connections once their responses have been sent.

        A connection that has just been opened is not idle yet, because its first request is probably on the way.
        Returns when all connections are closed or `limit` seconds have passed, whichever comes first.
        """
        self.begin_closing()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._wait_for_handshakes()
                await self._wait_until_drained(idle)
                for connection in [each for each in self.connections if each.had_request]:
                    connection.close_if_idle()
                await self._wait_until_drained(FIRST_REQUEST_TIMEOUT)
                for connection in list(self.connections):
                    connection.close_if_idle()
                await self._wait_until_drained(limit)

    async def _wait_until_drained(self, seconds: float) -> None:
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), seconds)

    async def _wait_for_handshakes(self) -> None:
        deadline = time.monotonic() + HANDSHAKES_TIMEOUT
        while self._handshaking and time.monotonic() < deadline:  # noqa: ASYNC110  # polls for at most two seconds
            await asyncio.sleep(0.01)
