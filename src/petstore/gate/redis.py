"""The gate for several machines: a Lua script that runs in Redis or Valkey and uses the server's clock.

The calls made in one iteration of the event loop are sent as one batch. Calls made while a batch is in flight form the
next batch. Each caller only awaits a future, so cancelling one caller cannot mix up the replies for other callers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Any

from petstore.changes import Change
from petstore.errors import Unavailable
from petstore.gate import VALID_SECONDS, CatalogueVersion, GatePolicy
from petstore.gate import redis_script as script
from petstore.gate.records import admissions_in, unpack_windows, valid_record
from petstore.gate.redis_link import Link, time_limit
from petstore.gate.redis_script import VERSION_NUMBER, ScriptCall, ScriptResult, Versions, decision_of
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.observability.logs import logger
from petstore.observability.metrics import GATE_BATCH, GATE_QUEUE
from petstore.operations import OperationName
from petstore.plans import Limits
from petstore.rate_limits import SECOND, Decision, Windows
from petstore.timeouts import CLIENT
from petstore.usage import AdmissionTotal

BATCH_TIMEOUT = CLIENT.gate
PROBE_INTERVAL = 0.2  # seconds between attempts to reach Redis while it is down
BATCH_MAX = 500  # maximum calls per batch; Redis serves no other client while it runs a batch
QUEUE_MAX = 20_000
NO_LIMITS = Limits(0, 0)


class QueueFull(Unavailable):
    """Too many calls are waiting for Redis.

    Redis is still available, so using the fallback would admit more requests than the limits allow.
    """


class Batch:
    """Calls and announcements that are sent to Redis together."""

    def __init__(self, calls: list[ScriptCall]) -> None:
        self.calls = calls
        self.announced = 0  # the changes to announce, with one bit for each version
        self.versions: list[asyncio.Future[Versions]] = []  # futures of callers that are waiting for the versions

    def fail(self, error: Exception) -> None:
        futures: list[asyncio.Future[Any]] = [*(call.future for call in self.calls), *self.versions]
        for future in futures:
            if not future.done():
                future.set_exception(error)


class RedisGate:
    """Implements `Gate`, which documents the methods."""

    immediate = False

    def __init__(
        self, link: Link, policy: GatePolicy, *, probe_interval: float = PROBE_INTERVAL, queue_max: int = QUEUE_MAX
    ) -> None:
        self._link = link
        self._bans = tuple(policy.bans)
        self._address_limits = Limits(policy.address_per_minute, 0)
        self._given_clock = policy.given_clock
        self._counted = policy.counted
        self._number = {name: number for number, name in enumerate(policy.counted)}
        self._probe_interval = probe_interval
        self._queue_max = queue_max
        self._health = Health("gate")
        self._loop = asyncio.get_running_loop()
        self._next = Batch([])
        self._now = 0.0  # the value of `now` in the latest call; used only if `given_clock` is set
        self._batches: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None  # runs while Redis is down
        # After an outage or a failover, versions may have been lost, so the next batch announces all changes.
        self._announce_all = True
        self._closed = False

    # For requests

    async def admit(
        self,
        environment: Environment,
        key_id: str,
        limits: Limits,
        keys_version: int,
        now: float,
        operation: OperationName,
    ) -> tuple[Decision, CatalogueVersion] | None:
        record, what = script.key_record(key_id), script.KEY_OPERATION[environment]
        versions, result = await self._call(record, what, now, limits, keys_version, self._number[operation])
        if result[0] == script.OUTDATED:  # a key has changed since the caller read the limits
            return None
        return decision_of(result), script.catalogue_version(versions, environment)

    async def admit_address(self, environment: Environment, address: str, now: float) -> Decision:
        record = script.address_record(environment, address)
        return decision_of((await self._call(record, script.ADDRESS, now, self._address_limits))[1])

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        record = script.address_record(environment, address)
        return decision_of((await self._call(record, script.PEEK, now, self._address_limits))[1])

    async def keys_version(self, environment: Environment) -> int:
        return (await self._versions_after(0))[VERSION_NUMBER[environment, "keys"]]

    async def announce(self, environment: Environment, changes: Collection[Change]) -> None:
        await self._versions_after(sum(1 << VERSION_NUMBER[environment, change] for change in set(changes)))

    async def mark_valid(self, digest: bytes, now: float, *, valid: bool) -> None:
        kept_for = Limits(VALID_SECONDS * SECOND if valid else 0, 0)
        await self._call(script.mark_record(digest), script.MARK, now, kept_for)

    async def was_valid(self, digest: bytes) -> bool:
        return (await self._call(script.mark_record(digest), script.IS_MARKED, self._now))[1][3] > 0

    # For operators

    async def lift(self, key_id: str) -> bool:
        return (await self._call(script.key_record(key_id), script.LIFT, time.time()))[1][3] > 0

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        return [unpack_windows(record) for _, record in await self._records_of(key_ids)]

    async def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        async for rows in self._all_records():
            yield [(key_id, unpack_windows(record)) for key_id, record in rows]

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        await self._send([script.put_command(key_id, w) for key_id, w in rows])

    async def admissions(self, key_ids: Sequence[str] | None = None) -> AsyncIterator[list[AdmissionTotal]]:
        if key_ids is not None:
            yield self._admissions_in(await self._records_of(key_ids))
            return
        async for rows in self._all_records():
            yield self._admissions_in(rows)

    def _admissions_in(self, rows: Sequence[tuple[str, bytes]]) -> list[AdmissionTotal]:
        return [each for key_id, record in rows for each in admissions_in(key_id, record, self._counted)]

    async def _records_of(self, key_ids: Sequence[str]) -> list[tuple[str, bytes]]:
        # Unlike GET, MGET does not fail if a value is not a string. Send one MGET per key, because a Redis Cluster
        # requires all keys in an MGET to be in the same slot.
        replies = await self._send([("MGET", script.key_record(key_id)) for key_id in key_ids])
        return [(key_id, valid_record(stored)) for key_id, (stored,) in zip(key_ids, replies, strict=True)]

    async def _all_records(self) -> AsyncIterator[list[tuple[str, bytes]]]:
        async for names in self._link.names(script.key_record("*")):
            yield await self._records_of([script.key_id_of(name) for name in names])

    async def _send(self, commands: Sequence[script.Command]) -> list[Any]:
        replies = []
        for start in range(0, len(commands), BATCH_MAX):
            async with time_limit(BATCH_TIMEOUT):
                replies += await self._link.send(commands[start : start + BATCH_MAX])
        return replies

    def degraded(self) -> bool:
        return False

    @property
    def down(self) -> bool:
        return self._probe is not None

    async def sweep(self, now: float) -> None:
        """Does nothing, because Redis removes expired records itself."""

    async def close(self) -> None:
        self._closed = True
        for task in (self._probe, self._batches):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._fail_waiting(Unavailable("the gate is closed"))
        await self._link.close()

    # Batches

    async def _call(
        self,
        record: str,
        what: int,
        now: float,
        limits: Limits = NO_LIMITS,
        keys_version: int = 0,
        number: int = 0,
    ) -> tuple[Versions, ScriptResult]:
        self._check_up()
        if len(self._next.calls) >= self._queue_max:
            raise QueueFull("too many requests are waiting for the gate")
        self._now = now
        call = ScriptCall(record, what, keys_version, *limits, self._loop.create_future(), number)
        self._next.calls.append(call)
        self._start_batches()
        return await call.future

    async def _versions_after(self, announced: int) -> Versions:
        """Announces changes in the next batch and returns the versions.

        Changes do not count toward the queue's limit, because a batch represents all of them as bits of one number.
        """
        self._check_up()
        versions: asyncio.Future[Versions] = self._loop.create_future()
        self._next.announced |= announced
        self._next.versions.append(versions)
        self._start_batches()
        return await versions

    def _check_up(self) -> None:
        if self._closed:
            raise Unavailable("the gate is closed")
        if self._probe is not None:
            raise Unavailable("the gate is down")

    def _start_batches(self) -> None:
        # The task starts in the next iteration of the event loop, so its batch includes all calls from this iteration.
        if self._batches is None:
            self._batches = self._loop.create_task(self._run_batches())

    async def _run_batches(self) -> None:
        try:
            while self._next.calls or self._next.versions:
                batch, self._next = self._next, Batch(self._next.calls[BATCH_MAX:])
                GATE_QUEUE.set(len(batch.calls))
                del batch.calls[BATCH_MAX:]
                try:
                    await self._run_batch(batch)
                except Unavailable as error:
                    batch.fail(error)
                    self._go_down(error)
                except asyncio.CancelledError:  # by close()
                    batch.fail(Unavailable("the gate is closed"))
                    raise
                except Exception as error:  # a bug, not an outage, so pass the exception to the callers
                    logger.exception("gate failed")
                    batch.fail(error)
        finally:
            GATE_QUEUE.set(0)
            self._batches = None

    async def _run_batch(self, batch: Batch) -> None:
        announced = script.ALL_CHANGES if self._announce_all else batch.announced
        self._announce_all = True  # if this batch fails, the next batch announces all changes
        now = str(int(self._now * SECOND)) if self._given_clock else ""
        async with time_limit(BATCH_TIMEOUT):
            versions, results = await self._link.run_script(now, self._bans, announced, batch.calls)
        self._announce_all = False
        if batch.calls:
            GATE_BATCH.observe(len(batch.calls))
        for waiting in batch.versions:
            if not waiting.done():
                waiting.set_result(versions)
        for call, result in zip(batch.calls, results, strict=True):
            if call.future.done():
                continue  # the caller was cancelled
            if isinstance(result, Unavailable):
                self._health.error()
                call.future.set_exception(result)
            else:
                call.future.set_result((versions, result))

    def _fail_waiting(self, error: Exception) -> None:
        failed, self._next = self._next, Batch([])
        failed.fail(error)

    def _go_down(self, outage: Unavailable) -> None:
        """Makes all calls fail immediately, instead of timing out, until a probe succeeds."""
        self._fail_waiting(outage)
        self._health.failed(outage)
        if self._probe is None:
            self._probe = self._loop.create_task(self._run_probe())

    async def _run_probe(self) -> None:
        answered = False
        try:
            while not answered:
                await asyncio.sleep(self._probe_interval)
                with contextlib.suppress(Unavailable):
                    await self._run_batch(Batch([]))
                    answered = True
        except Exception:  # a bug, not an outage, so stop probing; the next call will raise the exception
            logger.exception("gate failed")
        finally:
            self._probe = None
        self._health.worked(surely=True)
