"""Clients of one customer that hold as many connections as a proxy lets them, while another customer sends requests."""

import asyncio
import contextlib
import itertools
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from harness.wire import Response, request, split

SETTLED_WITHIN = 20.0  # seconds
ANSWERED_WITHIN = 20.0
RECONNECT_AFTER = 10.0  # on average
PAUSE = 0.1  # between two requests of the other client
STREAMS = 100  # requests on one HTTP/2 connection
_HEADERS, _RST_STREAM, _SETTINGS = 1, 3, 4  # types of HTTP/2 frames
_END_HEADERS = 4

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Target(NamedTuple):
    """A proxy on this machine, and the secret of a key of the service behind it."""

    port: int
    secret: str
    greedy: tuple[str, ...] = ("127.0.0.3",)  # the addresses of the clients that hold connections
    other: str = "127.0.0.2"  # the address of the client that must be served
    byte_every: float = 6.0  # seconds between two bytes of a slow head or body


class Outcome(NamedTuple):
    held: int  # connections that the greedy clients hold at the end, or requests on HTTP/2 connections
    responses: list[Response | None]  # to the other client, with None if there was none

    @property
    def statuses(self) -> list[int]:
        return [response.status if response else 0 for response in self.responses]


class Clients:
    """The clients at the greedy address. Each kind of client below holds one connection until the proxy closes it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._addresses = itertools.cycle(target.greedy)
        self.held = 0
        self.settled: set[object] = set()  # the tasks whose connection was accepted or refused

    async def connect(self, *protocols: str, tls: bool = True) -> Streams:
        return await _connect(self.target.port, next(self._addresses), *protocols, tls=tls)

    async def hold(self, streams: Streams, beginning: bytes, then: bytes = b"") -> None:
        """Sends the beginning, and then one byte every few seconds until the proxy closes the connection."""
        reader, writer = streams
        self.settled.add(asyncio.current_task())
        self.held += 1
        try:
            writer.write(beginning)
            while True:
                try:
                    async with asyncio.timeout(self.target.byte_every):
                        if not await reader.read(65536):
                            return
                except TimeoutError:
                    writer.write(then)
        finally:
            self.held -= 1
            writer.transport.abort()


async def silent(clients: Clients) -> None:
    """Sends nothing, not even the beginning of a TLS handshake."""
    await clients.hold(await clients.connect(tls=False), b"")


async def unfinished_handshake(clients: Clients) -> None:
    await clients.hold(await clients.connect(tls=False), b"\x16\x03\x01\x02\x00\x01")


async def idle(clients: Clients) -> None:
    """Sends a request, and keeps the connection open after the response."""
    await clients.hold(await clients.connect(), request("GET", "/healthz"))


async def slow_head(clients: Clients) -> None:
    await clients.hold(await clients.connect(), request("GET", "/v1/pets")[:-2] + b"X-Slow: ", b"x")


async def slow_body(clients: Clients) -> None:
    headers = {"Authorization": f"Bearer {clients.target.secret}", "Content-Length": "999"}
    await clients.hold(await clients.connect(), request("POST", "/v1/pets", headers), b"x")


async def slow_streams(clients: Clients) -> None:
    """Sends the heads of many requests on one HTTP/2 connection, but no bodies."""
    key = f"Bearer {clients.target.secret}".encode()
    # :method POST, :scheme https, :path and :authority by their indexes in the static table, and a literal field
    fields = b"\x83\x87\x04\x08/v1/pets\x01\x01x\x00\x0dauthorization" + bytes([len(key)]) + key
    reader, writer = await clients.connect("h2")
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
    waiting = {2 * number + 1 for number in range(STREAMS)}
    for stream in sorted(waiting):
        writer.write(_frame(_HEADERS, _END_HEADERS, stream, fields))
    clients.settled.add(asyncio.current_task())
    clients.held += STREAMS
    try:
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            stream = int.from_bytes(head[5:], "big")
            if head[3] in (_HEADERS, _RST_STREAM) and stream in waiting:
                waiting.remove(stream)
                clients.held -= 1
    finally:
        clients.held -= len(waiting)
        writer.transport.abort()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


Kind = Callable[[Clients], Awaitable[None]]
KINDS: dict[str, Kind] = {
    kind.__name__: kind for kind in (silent, unfinished_handshake, idle, slow_head, slow_body, slow_streams)
}


async def _connect(port: int, source: str, *protocols: str, tls: bool = True) -> Streams:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    host = "::1" if ":" in source else "127.0.0.1"
    return await asyncio.open_connection(host, port, local_addr=(source, 0), ssl=context if tls else None)


async def attack(
    kind: Kind, target: Target, connections: int, *, seconds: float = 1.0, reconnect: bool = False
) -> Outcome:
    """Opens connections of this kind, and sends requests from another address for this time."""
    clients = Clients(target)

    async def client() -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await kind(clients)
            clients.settled.add(asyncio.current_task())
            if not reconnect:
                return
            await asyncio.sleep(random.uniform(0, 2 * RECONNECT_AFTER))

    tasks = [asyncio.create_task(client()) for _ in range(connections)]
    try:
        with contextlib.suppress(TimeoutError):  # a proxy that serves too many clients accepts no more
            async with asyncio.timeout(SETTLED_WITHIN):
                while len(clients.settled) < connections:
                    await asyncio.sleep(PAUSE)
        responses = await send_requests(target, seconds)
        return Outcome(clients.held, responses)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(PAUSE)  # until asyncio has closed the sockets


async def send_requests(target: Target, seconds: float) -> list[Response | None]:
    """Sends requests from the other address for this time. Returns None for each request without a response in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    responses: list[Response | None] = []
    while loop.time() < end or not responses:
        responses.append(await _response(target))
        await asyncio.sleep(PAUSE)
    return responses


async def _response(target: Target) -> Response | None:
    message = request("GET", "/v1/pets", {"Authorization": f"Bearer {target.secret}"}, close=True)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWERED_WITHIN):
            reader, writer = await _connect(target.port, target.other)
            writer.write(message)
            received = await reader.read()
            writer.transport.abort()
            return split(received)[0] if received else None
    return None
