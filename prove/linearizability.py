"""Records the requests of many clients on several workers and nodes, and checks the history (see histories.py)."""

import asyncio
import bisect
import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness.backends import Postgres, Redis, shared
from harness.claims import hold, temporary_directory
from harness.nodes import nodes_running
from harness.servers import Server, started
from petstore.web.requests import write_cursor
from prove.histories import Create, read_of, violations
from prove.proof import Figures, Parts, Scale

CREATORS, READERS = 4, 8
PAGE = 20


class Seen(NamedTuple):
    """The result of a read: the ids that it found in the part of the list that it covers."""

    invoked: float
    responded: float
    after: int
    upto: float  # the read says nothing about higher ids
    ids: list[int]
    what: str


class History:
    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self.highest = 0  # the highest id that any client has seen
        self.creates: list[Create] = []
        self.reads: list[Seen] = []
        self.workers: set[int] = set()  # process ids of the workers that responded


class Client:
    def __init__(self, server: Server, secret: str, history: History, seed: int) -> None:
        self._server, self._history = server, history
        self._auth = f"Host: x\r\nAuthorization: Bearer {secret}\r\n"
        self._dice = random.Random(seed)
        self._name = f"client {seed}"

    async def create(self) -> None:
        async with self._connection():
            while time.monotonic() < self._history.until:
                body = '{"name":"Rex","categoryId":1}'
                invoked, status, _, content = await self._ask("POST", "/v1/pets", body)
                responded = time.monotonic()
                hold(status == 201, f"a create request gets a 201, not a {status}")
                pet_id = msgspec.json.decode(content)["id"]
                self._history.creates.append(Create(invoked, responded, pet_id))
                self._history.highest = max(self._history.highest, pet_id)
                await asyncio.sleep(self._dice.uniform(0, 0.004))

    async def read(self) -> None:
        async with self._connection():
            while time.monotonic() < self._history.until:
                await (self._list() if self._dice.random() < 0.6 else self._get())

    async def _list(self) -> None:
        # Read the newest animals from a multiple of PAGE, so that clients share cached pages.
        after = max(0, self._history.highest - self._dice.choice([0, PAGE])) // PAGE * PAGE
        path = f"/v1/pets?limit={PAGE}" + (f"&cursor={write_cursor(after)}" if after else "")
        invoked, status, head, content = await self._ask("GET", path)
        responded = time.monotonic()
        hold(status == 200, f"a list request gets a 200, not a {status}")
        ids = [pet["id"] for pet in msgspec.json.decode(content)]
        upto = ids[-1] if 'rel="next"' in head else float("inf")
        self._note(Seen(invoked, responded, after, upto, ids, f"{self._name}: list after {after}"))

    async def _get(self) -> None:
        pet_id = max(1, self._history.highest + self._dice.randint(-2, 2))
        invoked, status, _, _ = await self._ask("GET", f"/v1/pets/{pet_id}")
        responded = time.monotonic()
        hold(status in (200, 404), f"a get request gets a 200 or a 404, not a {status}")
        ids = [pet_id] if status == 200 else []
        self._note(Seen(invoked, responded, pet_id - 1, pet_id, ids, f"{self._name}: get {pet_id}"))

    def _note(self, seen: Seen) -> None:
        self._history.reads.append(seen)
        self._history.highest = max([self._history.highest, *seen.ids])

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[None]:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            yield
            self._history.workers.add(self._server.worker_behind(self._writer.get_extra_info("sockname")[1]))
        finally:
            self._writer.close()
            await self._writer.wait_closed()

    async def _ask(self, method: str, path: str, body: str = "") -> tuple[float, int, str, bytes]:
        """Sends a request. Returns when it was sent, and the status, head and body of the response."""
        message = f"{method} {path} HTTP/1.1\r\n{self._auth}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        invoked = time.monotonic()
        self._writer.write(message)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"content-length: (\d+)", head)
        content = await self._reader.readexactly(int(length[1]) if length else 0)
        return invoked, int(head[9:12]), head, content


async def record(servers: list[Server], secret: str, seconds: float) -> History:
    history = History(seconds)
    clients = [Client(servers[n % len(servers)], secret, history, n) for n in range(CREATORS + READERS)]
    await asyncio.gather(
        *(client.create() for client in clients[:CREATORS]), *(client.read() for client in clients[CREATORS:])
    )
    return history


def judge(history: History) -> list[str]:
    existing = sorted(create.pet_id for create in history.creates)
    reads = []
    for seen in history.reads:
        looked = _between(existing, seen.after, seen.upto)
        reads.append(read_of(seen.invoked, seen.responded, seen.ids, looked, seen.what))
    return violations(history.creates, reads)


def _between(existing: list[int], after: float, upto: float) -> Iterator[int]:
    for index in range(bisect.bisect_right(existing, after), len(existing)):
        if existing[index] > upto:
            return
        yield existing[index]


def prove(scale: Scale) -> Figures:
    figures: Figures = {}
    parts = Parts(scale)
    with temporary_directory() as data:
        with parts.part(), started(Server(data / "one", workers=2)) as server:
            figures |= _tried("2 workers", [server], scale)
        with parts.part(), nodes_running(Path(data), shared(Postgres), shared(Redis), skews=(0.0, 0.0)) as nodes:
            figures |= _tried("2 nodes", list(nodes), scale)
    parts.judge()
    return figures


def _tried(where: str, servers: list[Server], scale: Scale) -> Figures:
    history = asyncio.run(record(servers, servers[0].key().secret, scale.history_seconds))
    hold(len(history.workers) > 1, f"{where}: more than one worker answered")
    if scale.plant:  # a read that started after all animals were added but found an empty list
        history.reads.append(Seen(history.until + 60, history.until + 61, 0, float("inf"), [], "planted"))
    wrong = judge(history)
    hold(not wrong, f"{where}: {len(wrong)} violations in {len(history.reads)} reads, such as {wrong[:1]}")
    return {f"{where}: creates": len(history.creates), f"{where}: reads": len(history.reads), f"{where}: violations": 0}
