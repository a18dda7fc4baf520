"""A gate in Redis that falls back to local counters while Redis is unavailable."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from petstore.changes import Change
from petstore.errors import Unavailable
from petstore.gate import CatalogueVersion, Gate, GatePolicy
from petstore.gate.lmdb import LmdbGate
from petstore.gate.redis import QueueFull, RedisGate
from petstore.keys import Environment
from petstore.operations import OperationName
from petstore.plans import Limits
from petstore.rate_limits import Decision, Windows
from petstore.usage import AdmissionTotal

T = TypeVar("T")


class FallbackGate:
    """Uses Redis or, during an outage, a file shared by this node's workers.

    During an outage, limits apply to each node separately, and workers reread keys once a second. Each request is given
    a new catalogue version, so that no page is served from the cache. The file's `keys_version` never equals the one in
    Redis, so workers reread every key when an outage begins, and again when it ends.

    If one shard of a Redis Cluster fails, the file is used only for that shard's keys.
    """

    immediate = False

    def __init__(self, shared: RedisGate, path: Path, policy: GatePolicy) -> None:
        self._shared = shared
        self._path = path
        self._policy = policy
        self.fallback: LmdbGate | None = None  # opened when first needed
        self._unique_version = itertools.count(-2, -1)

    async def admit(
        self,
        environment: Environment,
        key_id: str,
        limits: Limits,
        keys_version: int,
        now: float,
        operation: OperationName,
    ) -> tuple[Decision, CatalogueVersion] | None:
        try:
            return await self._shared.admit(environment, key_id, limits, keys_version, now, operation)
        except Unavailable as error:
            fallback = self._fallback_after(error)
            if not self._shared.down:
                # Only this key's shard is down, so Redis has already checked `keys_version`. Pass the file's version
                # instead. The caller's version would never match it, and the worker would reread the key forever.
                keys_version = await fallback.keys_version(environment)
            admitted = await fallback.admit(environment, key_id, limits, keys_version, now, operation)
            unique = next(self._unique_version)
            return admitted and (admitted[0], (unique, unique))

    async def admit_address(self, environment: Environment, address: str, now: float) -> Decision:
        return await self._either(lambda gate: gate.admit_address(environment, address, now))

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        return await self._either(lambda gate: gate.peek_address(environment, address, now))

    async def keys_version(self, environment: Environment) -> int:
        return await self._either(lambda gate: gate.keys_version(environment))

    async def announce(self, environment: Environment, changes: Collection[Change]) -> None:
        """Announces changes. During an outage, the announcements reach only this node's workers.

        Workers on other affected nodes do not need them, because they serve no cached pages and reread keys every
        second until the outage ends. Then, each worker's first batch announces every kind of change.
        """
        await self._either(lambda gate: gate.announce(environment, changes))

    async def mark_valid(self, digest: bytes, now: float, *, valid: bool) -> None:
        await self._either(lambda gate: gate.mark_valid(digest, now, valid=valid))

    async def was_valid(self, digest: bytes) -> bool:
        return await self._either(lambda gate: gate.was_valid(digest))

    async def _either(self, call: Callable[[Gate], Awaitable[T]]) -> T:
        try:
            return await call(self._shared)
        except Unavailable as error:
            return await call(self._fallback_after(error))

    async def lift(self, key_id: str) -> bool:
        return await self._shared.lift(key_id)

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        return await self._shared.windows(key_ids)

    def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        return self._shared.all_windows()

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        await self._shared.put_windows(rows)

    async def admissions(self, key_ids: Sequence[str] | None = None) -> AsyncIterator[list[AdmissionTotal]]:
        """Yields the fallback's totals first, because they can be read even if Redis is unavailable."""
        if self._path.exists():
            async for totals in self._open_fallback().admissions(key_ids):
                yield totals
        async for totals in self._shared.admissions(key_ids):
            yield totals

    def degraded(self) -> bool:
        return self._shared.down

    async def sweep(self, now: float) -> None:
        if self.fallback is not None:
            await self.fallback.sweep(now)

    async def close(self) -> None:
        try:
            await self._shared.close()
        finally:
            if self.fallback is not None:
                await self.fallback.close()

    def _fallback_after(self, error: Unavailable) -> Gate:
        """Returns the fallback. Reraises QueueFull, because that error means that Redis is still available."""
        if isinstance(error, QueueFull):
            raise error
        return self._open_fallback()

    def _open_fallback(self) -> Gate:
        if self.fallback is None:
            self.fallback = LmdbGate(self._path, self._policy)
        return self.fallback
