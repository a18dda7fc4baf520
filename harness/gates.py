"""Helpers for tests of the gate: they call a gate, wait for it, and make its link to Redis fail."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from petstore.changes import CHANGES, Change
from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy
from petstore.gate.lmdb import LmdbGate
from petstore.gate.redis import RedisGate
from petstore.gate.redis_link import Link
from petstore.gate.redis_script import ScriptReply
from petstore.gate.redis_url import open_link
from petstore.keys import ENVIRONMENTS, Environment
from petstore.plans import Limits
from petstore.rate_limits import Decision

T = TypeVar("T")

NOW = 1_800_000_000.0
PLENTY = Limits(10**9, 10**9)
REFUSE = GatePolicy(outage="refuse")


async def ask(gate: Gate, key_id: str, limits: Limits, now: float = NOW) -> Decision:
    admitted = await gate.admit("live", key_id, limits, await gate.keys_version("live"), now, "other")
    assert admitted is not None
    return admitted[0]


async def all_versions(gate: Gate) -> dict[tuple[Environment, Change], int]:
    found: dict[tuple[Environment, Change], int] = {}
    for environment in ENVIRONMENTS:
        keys = await gate.keys_version(environment)
        admitted = await gate.admit(environment, "key_v", PLENTY, keys, NOW, "other")
        assert admitted is not None
        found |= {(environment, change): number for change, number in zip(CHANGES, (*admitted[1], keys), strict=True)}
    return found


async def answers_again(gate: Gate, key_id: str = "key_a") -> bool:
    """Returns whether the gate works again within 30 seconds."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(Unavailable):
            await ask(gate, key_id, PLENTY)
            return True
        await asyncio.sleep(0.02)  # polls until the deadline
    return False


async def eventually(condition: Callable[[], object]) -> bool:
    """Returns whether the condition becomes true within 10 seconds, during which the event loop runs."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if condition():
            return True
        await asyncio.sleep(0.02)  # polls until the deadline
    return False


def use_lmdb(
    data: Path, work: Callable[[LmdbGate], Awaitable[T]], policy: GatePolicy | None = None, **options: int
) -> T:
    """Runs `work` with an LMDB gate. `options` are passed to LmdbGate."""

    async def inside() -> T:
        gate = LmdbGate(data / "gate.mdb", policy or GatePolicy(), **options)
        try:
            return await work(gate)
        finally:
            await gate.close()

    return asyncio.run(inside())


class FaultyLink:
    """A link to a real Redis. Tests can replace its methods."""

    def __init__(self, link: Link) -> None:
        self.run_script: Callable[..., Coroutine[Any, Any, ScriptReply]] = link.run_script
        self.names: Callable[[str], AsyncIterator[list[bytes]]] = link.names
        self.send = link.send
        self.close = link.close


def use_link(url: str, work: Callable[[RedisGate, FaultyLink], Awaitable[T]], **options: Any) -> T:
    """Runs `work` with a Redis gate and its link, which tests can make fail. `options` are passed to RedisGate."""

    async def inside() -> T:
        link = FaultyLink(open_link(url))
        gate = RedisGate(link, REFUSE._replace(given_clock=True), **options)
        try:
            return await work(gate, link)
        finally:
            await gate.close()

    return asyncio.run(inside())
