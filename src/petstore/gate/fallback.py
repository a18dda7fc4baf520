"""What a node does while its Redis is away, if the operator wants it to go on: windows of its own, and no memory."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from petstore.errors import Unavailable
from petstore.gate import Gate, Subject
from petstore.gate.redis import Crowded, RedisGate
from petstore.keys import Environment
from petstore.plans import Limits
from petstore.rate_limits import Decision, Windows


class FallbackGate:
    """`shared` while it answers, else `own`: a file that the workers of this node share.

    Limits then hold per node. The file's version of the keys is never that of Redis, so every key is read again when
    an outage begins and when it ends, and once a second in between. Where one shard of a Cluster fails, this is so for
    its keys alone, which Redis still says to be the newest. Of the catalogue no version is the same twice: no page is
    served from memory.

    Where too many wait for a Redis that answers, they are told so: a limit of N would admit more than N otherwise.
    """

    def __init__(self, shared: RedisGate, open_own: Callable[[], Gate]) -> None:
        self._shared = shared
        self._open_own = open_own
        self._opened: Gate | None = None
        self._no_version = itertools.count(-2, -1)

    async def admit(
        self, environment: Environment, key_id: str, limits: Limits, keys_version: int, now: float
    ) -> tuple[Decision, int] | None:
        try:
            return await self._shared.admit(environment, key_id, limits, keys_version, now)
        except Crowded:
            raise
        except Unavailable:
            if not self._shared.down:
                # Redis answers, but not for this key. It has just found the version to be the newest. Compared with
                # the file's, the key would be read again for ever.
                keys_version = await self._own.keys_version(environment)
            passed = await self._own.admit(environment, key_id, limits, keys_version, now)
            return passed and (passed[0], next(self._no_version))

    async def admit_address(self, environment: Environment, address: str, now: float) -> Decision:
        try:
            return await self._shared.admit_address(environment, address, now)
        except Crowded:
            raise
        except Unavailable:
            return await self._own.admit_address(environment, address, now)

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        try:
            return await self._shared.peek_address(environment, address, now)
        except Crowded:
            raise
        except Unavailable:
            return await self._own.peek_address(environment, address, now)

    async def keys_version(self, environment: Environment) -> int:
        try:
            return await self._shared.keys_version(environment)
        except Unavailable:
            return await self._own.keys_version(environment)

    async def raise_version(self, environment: Environment, subject: Subject) -> None:
        """In an outage nobody remembers anything that this could make outdated; the other nodes' keys are a second old.

        When Redis is back, the first step of every node raises all versions.
        """
        try:
            await self._shared.raise_version(environment, subject)
        except Unavailable:
            await self._own.raise_version(environment, subject)

    async def lift(self, key_id: str) -> bool:
        return await self._shared.lift(key_id)

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        return await self._shared.windows(key_ids)

    def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        return self._shared.all_windows()

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        await self._shared.put_windows(rows)

    def degraded(self) -> bool:
        return self._shared.down

    async def sweep(self, now: float) -> None:
        if self._opened is not None:
            await self._opened.sweep(now)

    async def close(self) -> None:
        await self._shared.close()
        if self._opened is not None:
            await self._opened.close()

    @property
    def _own(self) -> Gate:
        if self._opened is None:
            self._opened = self._open_own()
        return self._opened
