"""Runs the app and the server's connections in this process, with a real store, a real gate and the test's clock."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from petstore.audit import Actor
from petstore.backends import Backends
from petstore.gate import Gate
from petstore.keys import mint, new_key
from petstore.plans import Limits
from petstore.server.connection import Connection
from petstore.server.http_server import HttpServer
from petstore.server.messages import RequestMessage
from petstore.settings import Settings
from petstore.store import Store
from petstore.web.app import App
from petstore.web.replies import Reply

NOW = 1_800_000_000.0


class Clock:
    """A clock that changes only when a test sets it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def request(
    path: str = "/v1/pets", query: str = "", method: str = "GET", body: bytes = b"", started: float = 0.0, **fields: Any
) -> RequestMessage:
    """Returns a request as the server would pass it to the app. Underscores in field names become hyphens."""
    given = {name.replace("_", "-"): value for name, value in fields.items()}
    made = RequestMessage(method, path, query, given, keep_alive=True, peer="192.0.2.9", started=started)
    made.body = body
    return made


def pairs(lines: str) -> list[tuple[str, str]]:
    """Splits the header lines of a reply into names and values."""
    return [(name, value) for name, _, value in (each.partition(": ") for each in lines.split("\r\n")[:-1])]


class Running:
    """An app with its backends, and a key with all scopes."""

    def __init__(self, app: App, stores: dict[Any, Store], gate: Gate, secret: str) -> None:
        self.app = app
        self.store, self.staging = stores["live"], stores["staging"]
        self.gate = gate
        self.secret = secret

    async def ask(self, path: str = "/v1/pets", query: str = "", **more: Any) -> Reply:
        """Sends a request with the key, and returns the reply."""
        return await self.app.answer(request(path, query, authorization=f"Bearer {self.secret}", **more))


def use_app(
    data: Path,
    work: Callable[[Running], Awaitable[None]],
    clock: Callable[[], float] = lambda: NOW,
    *,
    wrap_store: Callable[[Store], Store] = lambda store: store,
    wrap_gate: Callable[[Gate], Gate] = lambda gate: gate,
    **settings: Any,
) -> None:
    """Runs `work` with an app. The wrappers can inject faults into the live store or the gate."""

    async def inside() -> None:
        chosen = Settings(data=data, **settings)
        async with Backends(chosen) as backends:
            secret = mint("live")
            key = new_key("live", "enterprise", now=NOW, limits=Limits(10**6, 10**6))
            await backends.stores["live"].keys.create(key, secret, Actor("a test", NOW))
            stores = {**backends.stores, "live": wrap_store(backends.stores["live"])}
            gate = wrap_gate(backends.gate)
            await work(Running(App(chosen, stores, gate, clock), backends.stores, gate, secret))

    asyncio.run(inside())


class Wrapped:
    """Wraps an object, replacing some of its attributes."""

    def __init__(self, real: Any, **replaced: Any) -> None:
        self._real = real
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def with_fault(store: Store, noun: str, **replaced: Any) -> Store:
    """Returns the store with some methods of one part, such as `pets`, replaced."""
    fields: dict[str, Any] = {noun: Wrapped(getattr(store, noun), **replaced)}
    return store._replace(**fields)


class Slow:
    """An application that does not answer requests until a test allows it."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.may_go = asyncio.Event()

    async def answer(self, request: RequestMessage) -> Reply:
        await self.may_go.wait()
        reply: Reply = await self._app.answer(request)
        return reply

    async def reject(self, status: int, peer: str) -> Reply:
        reply: Reply = await self._app.reject(status, peer)
        return reply


class Transport(asyncio.Transport):
    """A transport that records what is written to it, and can simulate a client that does not read."""

    def __init__(self, peer: str = "192.0.2.9") -> None:
        super().__init__()
        self._peer = peer
        self.data = b""
        self.unsent = 0
        self.reading = True
        self.aborted = self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._peer, 12345) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass  # accepts everything

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: Any) -> None:
        self.data += data

    def write_eof(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = self.closed = True


def connected(server: HttpServer, peer: str = "192.0.2.9") -> tuple[Connection, Transport]:
    connection, transport = Connection(server), Transport(peer)
    connection.connection_made(transport)
    return connection, transport


async def until(condition: Callable[[], Any]) -> None:
    """Runs the event loop until the condition is true."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def listen(server: HttpServer) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0)
