"""Under load, the actions of operators take effect with the next request on every worker and node.

Clients that traverse the list while animals are removed neither miss one of the other animals nor see it twice.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

import msgspec

from harness.backends import Postgres, Redis, shared
from harness.claims import Broken, hold, progress, temporary_directory
from harness.nodes import nodes_running
from harness.servers import Server, started
from petstore.audit import Actor
from petstore.backends import Backends, open_stores_for
from petstore.cli.data import OPERATOR_BOUNDS
from petstore.keys import KeyChanges, mint, new_key
from petstore.pets import NewPet, PetChanges
from petstore.plans import Limits
from petstore.settings import Settings
from petstore.store import Store, close_stores
from petstore.web.requests import write_cursor
from prove.proof import Figures, Parts, Scale

PLENTY = Limits(10**9, 10**9)
TRAVERSALS = 100
PAGE = 20
ACTIONS = ("update", "suspend", "resume", "pets update", "pets remove")
WORKERS = 2  # both on one node, or one on each of two nodes
REFUSALS = ("--address-per-minute", "1000000")  # requests with a suspended key count against the address's limit
CONNECTIONS_MAX = 200  # enough to reach both workers, because the kernel assigns connections to workers


class Answer(NamedTuple):
    status: int
    head: str
    body: bytes

    def header(self, name: str) -> str:
        found = re.search(rf"^{name}: (.*?)\r$", self.head, re.MULTILINE | re.IGNORECASE)
        return found[1] if found else ""

    @property
    def ids(self) -> list[int]:
        return [pet["id"] for pet in msgspec.json.decode(self.body)]


class Client:
    """A connection that stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str) -> None:
        self._reader, self._writer = reader, writer
        self._auth = f"Host: x\r\nAuthorization: Bearer {secret}\r\n"

    @property
    def port(self) -> int:
        port: int = self._writer.get_extra_info("sockname")[1]
        return port

    async def get(self, path: str, etag: str = "") -> Answer:
        condition = f"If-None-Match: {etag}\r\n" if etag else ""
        self._writer.write(f"GET /v1{path} HTTP/1.1\r\n{self._auth}{condition}\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        answer = Answer(int(head[9:12]), head, b"")
        return answer._replace(body=await self._reader.readexactly(int(answer.header("content-length") or 0)))


@contextlib.asynccontextmanager
async def connected(server: Server, secret: str) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Client(reader, writer, secret)
    finally:
        writer.close()
        await writer.wait_closed()


async def one_for_each_worker(servers: Sequence[Server], secret: str, stack: contextlib.AsyncExitStack) -> list[Client]:
    """Opens a connection to each worker. Raises Broken if a worker gets no connection."""
    clients: dict[int, Client] = {}
    for number in range(CONNECTIONS_MAX):
        server = servers[number % len(servers)]
        client = await stack.enter_async_context(connected(server, secret))
        await client.get("/pets?limit=1")  # after the response, a worker has accepted the connection
        clients.setdefault(server.worker_behind(client.port), client)
        if len(clients) == WORKERS:
            return list(clients.values())
    raise Broken(f"{CONNECTIONS_MAX} connections did not reach all {WORKERS} workers")


@contextlib.asynccontextmanager
async def live_store(server: Server, *, plant: bool) -> AsyncIterator[Store]:
    """Yields the store that commands use. With `plant`, it does not announce changes to the service."""
    settings = Settings(data=server.data, store=server.store, gate=server.gate)
    async with Backends(settings, bounds=OPERATOR_BOUNDS) as backends:
        stores = open_stores_for(settings, None, bounds=OPERATOR_BOUNDS) if plant else backends.stores
        try:
            yield stores["live"]
        finally:
            if plant:
                await close_stores(stores.values())


def by() -> Actor:
    return Actor("the proof", time.time())


class Trials:
    def __init__(self, store: Store, clients: list[Client], key_id: str) -> None:
        self._store, self._clients, self._key_id = store, clients, key_id
        self.requests = 0

    async def key(self, number: int) -> None:
        await self._expect_status(200, "/pets?limit=1", "a request before any action")
        limit = 10**8 + number
        await self._store.keys.update(self._key_id, KeyChanges(per_minute=limit), by())
        for answer in await self._ask("/pets?limit=1"):
            hold(answer.header("x-ratelimit-limit") == str(limit), f"trial {number}: a key's update takes effect")
        await self._store.keys.suspend(self._key_id, by())
        await self._expect_status(401, "/pets?limit=1", f"trial {number}: a suspension takes effect")
        await self._store.keys.resume(self._key_id, by())
        await self._expect_status(200, "/pets?limit=1", f"trial {number}: a resumption takes effect")

    async def animal(self, number: int) -> None:
        pet = await self._store.pets.add_by_hand(NewPet("Rex", 1), by())
        page = f"/pets?limit={PAGE}&cursor={write_cursor(pet.id - 1)}"
        one = f"/pets/{pet.id}"
        await self._expect_name("Rex", page, one, f"trial {number}: a new animal is visible")
        await self._store.pets.update(pet.id, PetChanges(name=f"Max {number}"), by())
        etags = await self._expect_name(f"Max {number}", page, one, f"trial {number}: an animal's update takes effect")
        await self._store.removals.remove([pet.id], by())
        await self._expect_status(404, one, f"trial {number}: a removal takes effect")
        for answer in await self._ask(page, etags):
            hold((answer.status, answer.body) == (200, b"[]"), f"trial {number}: a list has no removed animal")

    async def _expect_name(self, name: str, page: str, one: str, claim: str) -> list[str]:
        """Raises Broken unless every client sees the name. Returns the page's ETag for each client."""
        for answer in await self._ask(one):
            hold(answer.status == 200 and msgspec.json.decode(answer.body)["name"] == name, claim)
        pages = await self._ask(page)
        for answer in pages:
            hold([pet["name"] for pet in msgspec.json.decode(answer.body)] == [name], f"{claim} in a list")
        return [answer.header("etag") for answer in pages]

    async def _expect_status(self, status: int, path: str, claim: str) -> None:
        statuses = {answer.status for answer in await self._ask(path)}
        hold(statuses == {status}, f"{claim}: {status}, not {statuses}")

    async def _ask(self, path: str, etags: Iterable[str] = ()) -> list[Answer]:
        conditions = list(etags) or [""] * len(self._clients)
        self.requests += len(self._clients)
        asked = zip(self._clients, conditions, strict=True)
        return list(await asyncio.gather(*(client.get(path, etag) for client, etag in asked)))


async def traverse(client: Client) -> list[int]:
    """Follows the links from page to page, and returns the ids of all animals. Raises Broken."""
    seen: list[int] = []
    path = f"/pets?limit={PAGE}"
    while path:
        answer = await client.get(path)
        hold(answer.status == 200, f"a page request gets a 200, not a {answer.status}")
        seen += answer.ids
        link = re.search(r'</v1(/pets[^>]*)>; rel="next"', answer.header("link"))
        path = link[1] if link else ""
    return seen


class Removal:
    """Removes every second animal while clients traverse the list repeatedly."""

    def __init__(self, first_id: int, last_id: int) -> None:
        self._all = range(first_id, last_id + 1)
        self.victims = list(self._all)[::2]
        self._stay = set(self._all) - set(self.victims)
        self.removed: set[int] = set()
        self.traversals = 0

    async def run(self, store: Store) -> None:
        for victim in self.victims:
            await store.removals.remove([victim], by())
            self.removed.add(victim)

    async def watch(self, server: Server, secret: str) -> None:
        """Traverses the list until all victims are removed, and once more. Raises Broken."""
        async with connected(server, secret) as client:
            while len(self.removed) < len(self.victims):
                await self._check_traversal(client)
            await self._check_traversal(client)

    async def _check_traversal(self, client: Client) -> None:
        gone = set(self.removed)
        self.judge(gone, await traverse(client))
        self.traversals += 1

    def judge(self, gone: set[int], seen: list[int]) -> None:
        """Raises Broken if a traversal is wrong. `gone` has the animals that were removed before it started."""
        missed = sorted(self._stay - set(seen))
        hold(seen == sorted(set(seen)), "no animal is seen twice or out of order")
        hold(not missed, f"no remaining animal is missed: {missed[:5]}")
        hold(not gone & set(seen), "no animal is seen that was removed before the traversal")
        hold(set(seen) <= set(self._all), "no animal is seen that does not exist")


async def removed_under_traversals(servers: Sequence[Server], secret: str, store: Store, scale: Scale) -> Removal:
    """Removes animals while clients traverse the list. Raises Broken."""
    first = await store.pets.add_by_hand(NewPet("Pet 0", 1), by())
    for number in range(1, 2 * scale.trials):
        last = await store.pets.add_by_hand(NewPet(f"Pet {number}", 1), by())
    removal = Removal(first.id, last.id)
    watching = (removal.watch(servers[number % len(servers)], secret) for number in range(TRAVERSALS))
    await asyncio.gather(*watching, removal.run(store))
    return removal


async def tried(servers: Sequence[Server], scale: Scale) -> tuple[Removal | None, int]:
    """Returns the finished removal, and the number of requests in the trials. Raises Broken.

    With a planted fault, only the trials run, because they must find it. tests/project plants a fault for each claim
    about a removal.
    """
    async with live_store(servers[0], plant=scale.plant) as store, contextlib.AsyncExitStack() as stack:
        key, secret = new_key("live", "enterprise", now=time.time(), limits=PLENTY), mint("live")
        await store.keys.create(key, secret, by())
        removal = None if scale.plant else await removed_under_traversals(servers, secret, store, scale)
        trials = Trials(store, await one_for_each_worker(servers, secret, stack), key.id)
        for number in range(scale.trials):
            await trials.key(number)
            await trials.animal(number)
            if number % 100 == 99:
                progress(f"{number + 1} trials")
        return removal, trials.requests


def prove(scale: Scale) -> Figures:
    figures: Figures = {"trials of each action": scale.trials, "actions": ", ".join(ACTIONS)}
    parts = Parts(scale)
    with temporary_directory() as data:
        with parts.part(), started(Server(data / "one", "own", *REFUSALS, workers=WORKERS)) as server:
            figures |= _figures("2 workers", [server], scale)
        nodes = nodes_running(data, shared(Postgres), shared(Redis), *REFUSALS, skews=(0.0,) * WORKERS, workers=1)
        with parts.part(), nodes as servers:
            figures |= _figures("2 nodes", servers, scale)
    parts.judge()
    return figures


def _figures(where: str, servers: Sequence[Server], scale: Scale) -> Figures:
    removal, requests = asyncio.run(tried(servers, scale))
    if removal is None:
        return {}
    return {
        f"{where}: requests": requests,
        f"{where}: not obeyed": 0,
        f"{where}: removed under {TRAVERSALS} clients": len(removal.removed),
        f"{where}: traversals": removal.traversals,
        f"{where}: others missed or twice": 0,
    }
