"""The gate of several machines: Redis or Valkey, one Lua script, the clock of Redis.

The calls of one turn of the event loop are sent as one batch. The calls that come while a batch is in flight form the
next one. A caller only awaits a future, so a cancelled caller cannot shift the replies of other callers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence

from petstore.errors import Unavailable
from petstore.gate import GatePolicy, Subject
from petstore.gate.redis_errors import QueueFull, time_limit
from petstore.gate.redis_link import Link
from petstore.gate.redis_marks import ValidMarks
from petstore.gate.redis_script import (
    ADDRESS,
    ALL_VERSIONS,
    KEY_OPERATION,
    LIFT,
    OUTDATED,
    PEEK,
    VERSION_NUMBER,
    ScriptCall,
    ScriptResult,
    Versions,
    address_record,
    decision_of,
    key_id_of,
    key_record,
    pack_windows,
    totals_in,
    totals_record,
    unpack_windows,
)
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.observability.logs import logger
from petstore.observability.metrics import GATE_BATCH, GATE_QUEUE
from petstore.plans import Limits
from petstore.rate_limits import DAY, MINUTE, SECOND, Decision, Windows
from petstore.usage import AdmissionTotal, Operation

BATCH_TIMEOUT = 1.0  # seconds
PROBE_INTERVAL = 0.2  # seconds between two attempts to reach a Redis that is down
BATCH_MAX = 500  # calls in one batch: Redis serves no other client meanwhile
QUEUE_MAX = 20_000
NO_LIMITS = Limits(0, 0)

CallFuture = asyncio.Future[tuple[Versions, ScriptResult]]
VersionsFuture = asyncio.Future[Versions]


class RedisGate:
    """See `Gate` for what each method promises."""

    def __init__(
        self, link: Link, policy: GatePolicy, *, probe_interval: float = PROBE_INTERVAL, queue_max: int = QUEUE_MAX
    ) -> None:
        self._link = link
        self._marks = ValidMarks(link)
        self._bans = tuple(policy.bans)
        self._address_limits = Limits(policy.address_per_minute, 0)
        self._given_clock = policy.given_clock
        self._probe_interval = probe_interval
        self._queue_max = queue_max
        self._health = Health("gate")
        self._loop = asyncio.get_running_loop()
        self._calls: list[ScriptCall] = []
        self._raises: list[tuple[int, VersionsFuture]] = []  # bits of the versions to raise
        self._now = 0.0  # of the latest call; used only with a given clock
        self._batches: asyncio.Task[None] | None = None
        self._batches_scheduled = False
        self._probe: asyncio.Task[None] | None = None  # runs while Redis is down
        # A cached value may be from before an outage or a failover, in which versions were lost.
        self._raise_all = True
        self._closed = False

    # For requests

    async def admit(
        self,
        environment: Environment,
        key_id: str,
        limits: Limits,
        keys_version: int,
        now: float,
        operation: Operation = "other",
    ) -> tuple[Decision, int] | None:
        versions, result = await self._call(
            key_record(key_id),
            KEY_OPERATION[environment],
            now,
            keys_version=keys_version,
            limits=limits,
            counted_as=operation,
        )
        if result[0] == OUTDATED:  # admit.lua has compared the versions of the keys
            return None
        return decision_of(result), versions[VERSION_NUMBER[environment, "catalogue"]]

    async def admit_address(self, environment: Environment, address: str, now: float) -> Decision:
        record = address_record(environment, address)
        return decision_of((await self._call(record, ADDRESS, now, limits=self._address_limits))[1])

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        record = address_record(environment, address)
        return decision_of((await self._call(record, PEEK, now, limits=self._address_limits))[1])

    async def keys_version(self, environment: Environment) -> int:
        return (await self._raise(0))[VERSION_NUMBER[environment, "keys"]]

    async def raise_version(self, environment: Environment, subject: Subject) -> None:
        await self._raise(1 << VERSION_NUMBER[environment, subject])

    async def mark_valid(self, digest: bytes, now: float, *, valid: bool) -> None:
        self._check_up()
        await self._marks.put(digest, valid=valid)

    async def was_valid(self, digest: bytes) -> bool:
        self._check_up()
        return await self._marks.has(digest)

    # For operators

    async def lift(self, key_id: str) -> bool:
        return (await self._call(key_record(key_id), LIFT, time.time()))[1][3] > 0

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        async with time_limit(BATCH_TIMEOUT):
            values = await self._link.values([key_record(key_id) for key_id in key_ids])
        return [unpack_windows(value) for value in values]

    async def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        async for names in self._all_names(key_record("*")):
            async with time_limit(BATCH_TIMEOUT):
                values = await self._link.values(names)
            yield [(key_id_of(name), unpack_windows(value)) for name, value in zip(names, values, strict=True) if value]

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        records = [(key_record(key_id), pack_windows(w), _expiry(w)) for key_id, w in rows]
        for start in range(0, len(records), BATCH_MAX):
            async with time_limit(BATCH_TIMEOUT):
                await self._link.put(records[start : start + BATCH_MAX])

    async def admissions(self, key_ids: Sequence[str] | None = None) -> AsyncIterator[list[AdmissionTotal]]:
        if key_ids is None:
            async for names in self._all_names(totals_record("*")):
                yield await self._totals([key_id_of(name) for name in names])
            return
        for start in range(0, len(key_ids), BATCH_MAX):
            yield await self._totals(key_ids[start : start + BATCH_MAX])

    async def _totals(self, key_ids: Sequence[str]) -> list[AdmissionTotal]:
        async with time_limit(BATCH_TIMEOUT):
            found = await self._link.hashes([totals_record(key_id) for key_id in key_ids])
        return [total for key_id, fields in zip(key_ids, found, strict=True) for total in totals_in(key_id, fields)]

    async def _all_names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        names_in_turn = aiter(self._link.names(pattern))
        while True:
            async with time_limit(BATCH_TIMEOUT):
                names = await anext(names_in_turn, None)
            if names is None:
                return
            yield names

    def degraded(self) -> bool:
        return False

    @property
    def down(self) -> bool:
        return self._probe is not None

    async def sweep(self, now: float) -> None:
        """Redis itself removes records: each has an expiry."""

    async def close(self) -> None:
        self._closed = True
        for task in (self._probe, self._batches):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._fail(Unavailable("the gate is closed"), *self._take_all())
        await self._marks.close()
        await self._link.close()

    # Batches

    async def _call(
        self,
        record: str,
        operation: int,
        now: float,
        *,
        keys_version: int = 0,
        limits: Limits = NO_LIMITS,
        counted_as: Operation = "other",
    ) -> tuple[Versions, ScriptResult]:
        self._check_up()
        if len(self._calls) >= self._queue_max:
            raise QueueFull("too many requests wait for the gate")
        self._now = now
        future: CallFuture = self._loop.create_future()
        self._calls.append(ScriptCall(record, operation, keys_version, *limits, future, counted_as))
        self._schedule_batches()
        return await future

    async def _raise(self, bits: int) -> Versions:
        """Raise versions with the next batch. The queue has no limit here: all of these calls are one number in it."""
        self._check_up()
        future: VersionsFuture = self._loop.create_future()
        self._raises.append((bits, future))
        self._schedule_batches()
        return await future

    def _check_up(self) -> None:
        if self._closed:
            raise Unavailable("the gate is closed")
        if self._probe is not None:
            raise Unavailable("the gate is down")

    def _schedule_batches(self) -> None:
        if self._batches is None and not self._batches_scheduled:
            # Not at once, so that all calls of this turn of the loop are in the batch.
            self._batches_scheduled = True
            self._loop.call_soon(self._start_batches)

    def _start_batches(self) -> None:
        self._batches_scheduled = False
        if not self._closed:
            self._batches = self._loop.create_task(self._run_batches())

    async def _run_batches(self) -> None:
        calls: list[ScriptCall] = []
        raises: list[tuple[int, VersionsFuture]] = []
        try:
            while self._calls or self._raises:
                calls, self._calls = self._calls[:BATCH_MAX], self._calls[BATCH_MAX:]
                raises, self._raises = self._raises, []
                GATE_QUEUE.set(len(calls) + len(self._calls))
                try:
                    await self._run_batch(calls, raises)
                except Unavailable as error:
                    self._raise_all = True
                    self._fail(error, calls, raises)
                    self._go_down(error)
                except Exception as error:  # a bug, and no outage: its callers get the exception itself
                    self._raise_all = True
                    logger.exception("gate failed")
                    self._fail(error, calls, raises)
        except asyncio.CancelledError:  # by close()
            self._fail(Unavailable("the gate is closed"), calls, raises)
            raise
        finally:
            GATE_QUEUE.set(0)
            self._batches = None

    async def _run_batch(self, calls: list[ScriptCall], raises: list[tuple[int, VersionsFuture]]) -> None:
        bits = ALL_VERSIONS if self._raise_all else 0
        for bit, _ in raises:
            bits |= bit
        now = str(int(self._now * SECOND)) if self._given_clock else ""
        async with time_limit(BATCH_TIMEOUT):
            versions, results = await self._link.run_script(now, self._bans, bits, calls)
        self._raise_all = False
        if calls:
            GATE_BATCH.observe(len(calls))
        for _, raised in raises:
            if not raised.done():
                raised.set_result(versions)
        for call, result in zip(calls, results, strict=True):
            if call.future.done():
                continue  # the caller was cancelled
            if isinstance(result, Unavailable):
                self._health.error()
                call.future.set_exception(result)
            else:
                call.future.set_result((versions, result))

    def _take_all(self) -> tuple[list[ScriptCall], list[tuple[int, VersionsFuture]]]:
        calls, raises = self._calls, self._raises
        self._calls, self._raises = [], []
        return calls, raises

    def _fail(self, error: Exception, calls: list[ScriptCall], raises: list[tuple[int, VersionsFuture]]) -> None:
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)
        for _, raised in raises:
            if not raised.done():
                raised.set_exception(error)

    def _go_down(self, outage: Unavailable) -> None:
        """Fail every call at once, rather than after a timeout each, until a probe is answered."""
        self._fail(outage, *self._take_all())
        self._health.failed(outage)
        if self._probe is None:
            self._probe = self._loop.create_task(self._run_probe())

    async def _run_probe(self) -> None:
        answered = False
        try:
            while not answered:
                await asyncio.sleep(self._probe_interval)
                with contextlib.suppress(Unavailable):
                    await self._run_batch([], [])
                    answered = True
        except Exception:  # a bug, and no outage: the next call meets it, and gets the exception itself
            logger.exception("gate failed")
        finally:
            self._probe = None
        self._health.worked(surely=True)


def _expiry(w: Windows) -> int:
    """In milliseconds, and at least what `admit.lua` chooses: after it nothing in the record can matter."""
    return DAY + w.ban_end - w.ban_start + MINUTE
