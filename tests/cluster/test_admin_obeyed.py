"""The next request after an operator's action obeys it, whichever of two workers answers, on each pair of backends.

PETSTORE_TEST_TRIALS sets how often: 10 by default.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from harness.servers import Host, Server, serving
from petstore.admin.actions import Admin
from petstore.backends import Backends
from petstore.cli.admin import OPERATOR_BOUNDS
from petstore.keys import KeyChanges
from petstore.pets import NewPet, PetChanges
from petstore.plans import Limits
from petstore.settings import Settings

TRIALS = int(os.environ.get("PETSTORE_TEST_TRIALS", "10"))
CONNECTIONS = 6  # the kernel spreads them over the workers
PLENTY = Limits(1_000_000, 1_000_000)


class Bench(NamedTuple):
    """An operator, and clients whose connections stay open."""

    admin: Admin
    clients: list[httpx.AsyncClient]
    url: str
    key_id: str

    async def statuses(self, path: str = "/pets") -> set[int]:
        replies = await asyncio.gather(*(client.get(self.url + path) for client in self.clients))
        return {reply.status_code for reply in replies}


@asynccontextmanager
async def bench(server: Server) -> AsyncIterator[Bench]:
    settings = Settings(data=server.data, store=server.store, gate=server.gate)
    async with Backends(settings, bounds=OPERATOR_BOUNDS) as backends, AsyncExitStack() as stack:
        admin = Admin(backends.stores["live"], backends.gate, "ada", time.time)
        key, secret = await admin.create_key("enterprise", limits=PLENTY)
        headers = {"Authorization": f"Bearer {secret}"}
        clients = [httpx.AsyncClient(headers=headers, verify=False, timeout=20) for _ in range(CONNECTIONS)]
        for client in clients:
            await stack.enter_async_context(client)
        yield Bench(admin, clients, server.url(""), key.id)


@pytest.fixture(scope="module", params=["own", "cluster"], ids=["sqlite-lmdb", "postgres-redis"])
def two_workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    host: Host = request.param
    data: Path = tmp_path_factory.mktemp("obeyed") / "data"
    with serving(data, host, "--address-per-minute", "1000000", workers=2) as server:
        yield server


def tried(server: Server, trial: Callable[[Bench, int], Awaitable[None]]) -> None:
    async def work() -> None:
        async with bench(server) as given:
            for number in range(TRIALS):
                await trial(given, number)

    asyncio.run(work())


def test_suspend_and_resume_are_obeyed(two_workers: Server) -> None:
    async def trial(bench: Bench, number: int) -> None:
        assert await bench.statuses() == {200}
        await bench.admin.suspend_key(bench.key_id)
        assert await bench.statuses() == {401}
        await bench.admin.resume_key(bench.key_id)

    tried(two_workers, trial)


def test_an_update_is_obeyed(two_workers: Server) -> None:
    async def trial(bench: Bench, number: int) -> None:
        limit = 500_000 + number
        await bench.admin.update_key(bench.key_id, KeyChanges(per_minute=limit))
        replies = await asyncio.gather(*(client.get(bench.url + "/pets") for client in bench.clients))
        assert {reply.headers["x-ratelimit-limit"] for reply in replies} == {str(limit)}

    tried(two_workers, trial)


def test_update_and_removal_of_an_animal_are_obeyed(two_workers: Server) -> None:
    async def trial(bench: Bench, number: int) -> None:
        pet = await bench.admin.add_pet(NewPet("Rex", 1))
        path = f"{bench.url}/pets/{pet.id}"
        assert {(await client.get(path)).json()["name"] for client in bench.clients} == {"Rex"}
        await bench.admin.update_pet(pet.id, PetChanges(name="Max"))
        assert {(await client.get(path)).json()["name"] for client in bench.clients} == {"Max"}
        await bench.admin.remove_pets([pet.id])
        assert await bench.statuses(f"/pets/{pet.id}") == {404}

    tried(two_workers, trial)
