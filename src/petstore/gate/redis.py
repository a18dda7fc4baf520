"""The gate of many machines: Redis or Valkey, one Lua script, Redis' own clock.

All that one turn of the event loop brings goes out as one step, and what comes in while it is under way makes the
next. A request only ever holds a future: one that is cancelled cannot shift another's answer.
"""

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple, Protocol

from petstore.errors import Unavailable
from petstore.gate import GatePolicy, Subject, bucket_of
from petstore.keys import ENVIRONMENTS, Environment
from petstore.observability.health import Health
from petstore.observability.metrics import GATE_BATCH, GATE_QUEUE
from petstore.plans import Limits
from petstore.rate_limits import DAY, MINUTE, SECOND, Decision, Outcome, Window, Windows

PATIENCE = 1.0  # seconds that a step may take
PROBE_EVERY = 0.2  # seconds between two tries to reach a Redis that is down
STEP_MAX = 500  # requests in one step: Redis answers nobody else meanwhile
WAITING_MAX = 20_000

VERSIONS = "petstore:{versions}"
KEY_LIVE, KEY_STAGING, ADDRESS, PEEK, LIFT = range(5)  # what the script can do with a record
OUTDATED = 3
ALL_VERSIONS = 15
NO_LIMITS = Limits(0, 0)
_BITS: dict[tuple[Environment, Subject], int] = {
    ("live", "catalogue"): 1,
    ("live", "keys"): 2,
    ("staging", "catalogue"): 4,
    ("staging", "keys"): 8,
}
_KEY_OF: dict[Environment, int] = {"live": KEY_LIVE, "staging": KEY_STAGING}

_windows = struct.Struct("<9q")
_versions = struct.Struct("<4q")
_request = struct.Struct("<4q")
_answer = struct.Struct("<6q")
_WINDOW: tuple[Window, Window] = ("minute", "day")
_OUTCOME = tuple(Outcome)

Versions = tuple[int, int, int, int]  # live catalogue, live keys, staging catalogue, staging keys
Answer = tuple[int, int, int, int, int, int]  # outcome, window, limit, remaining, reset, wait


class Request(NamedTuple):
    """One line of a step, and who waits for its answer."""

    name: str
    what: int
    asked_under: int
    per_minute: int
    per_day: int
    future: "asyncio.Future[tuple[Versions, Answer]]"


class Link(Protocol):
    """The way to the servers. Every method raises Unavailable, and the next call tries anew."""

    async def step(self, now: str, bans: Sequence[int], raised: int, requests: Sequence[Request]) -> "Step": ...

    def connected(self) -> bool:
        """False: the next step is the first on its connection, perhaps to a server that knows nothing."""

    def names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """The names of records, a handful at a time."""

    async def values(self, names: Sequence[bytes | str]) -> list[bytes | None]: ...

    async def put(self, records: Sequence[tuple[str, bytes, int]]) -> None:
        """Names, values, and the milliseconds after which they expire."""

    async def close(self) -> None: ...


class Step(NamedTuple):
    versions: Versions
    answers: "Sequence[Answer | Unavailable]"


class Crowded(Unavailable):
    """Redis answers, but too many wait for it. No outage: nobody but Redis may decide meanwhile."""


class RedisGate:
    """See `Gate` for what each method promises."""

    def __init__(self, link: Link, policy: GatePolicy) -> None:
        self._link = link
        self._bans = tuple(policy.bans)
        self._address_limits = Limits(policy.address_per_minute, 0)
        self._given_clock = policy.given_clock
        self._health = Health("gate")
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Request] = []
        self._raised: list[tuple[int, asyncio.Future[Versions]]] = []
        self._now = 0.0  # of the latest request; used only with a clock that is given
        self._stepping: asyncio.Task[None] | None = None
        self._starting = False
        self._down: asyncio.Task[None] | None = None  # while Redis does not answer: what tries to reach it
        # What is remembered anywhere under versions of another time, before a failover say, is worth nothing now.
        self._fresh = False

    # What requests need

    async def admit(
        self, environment: Environment, key_id: str, limits: Limits, keys_version: int, now: float
    ) -> tuple[Decision, int] | None:
        what = _KEY_OF[environment]
        versions, answer = await self._ask(name_of(key_id), what, now, keys_version, limits)
        if answer[0] == OUTDATED:
            return None
        return _decision(answer), versions[2 * what]

    async def admit_address(self, environment: Environment, address: str, now: float) -> Decision:
        name = _address_name(environment, address)
        return _decision((await self._ask(name, ADDRESS, now, limits=self._address_limits))[1])

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        name = _address_name(environment, address)
        return _decision((await self._ask(name, PEEK, now, limits=self._address_limits))[1])

    async def keys_version(self, environment: Environment) -> int:
        return (await self._raise(0))[1 if environment == "live" else 3]

    async def raise_version(self, environment: Environment, subject: Subject) -> None:
        await self._raise(_BITS[environment, subject])

    # What operators need

    async def lift(self, key_id: str) -> bool:
        return (await self._ask(name_of(key_id), LIFT, time.time()))[1][3] > 0

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        async with _patience():
            values = await self._link.values([name_of(key_id) for key_id in key_ids])
        return [_unpacked(value) for value in values]

    async def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        batches = aiter(self._link.names(name_of("*")))
        while True:
            async with _patience():
                names = await anext(batches, None)
                if names is None:
                    return
                values = await self._link.values(names)
            yield [(_key_id_in(name), _unpacked(value)) for name, value in zip(names, values, strict=True) if value]

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        records = [(name_of(key_id), _windows.pack(*w), _life(w)) for key_id, w in rows]
        for start in range(0, len(records), STEP_MAX):
            async with _patience():
                await self._link.put(records[start : start + STEP_MAX])

    def degraded(self) -> bool:
        return False

    @property
    def down(self) -> bool:
        return self._down is not None

    async def sweep(self, now: float) -> None:
        """Nothing to do: every record has an expiry."""

    async def close(self) -> None:
        for task in (self._down, self._stepping):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self._link.close()

    # Steps

    async def _ask(
        self, name: str, what: int, now: float, asked_under: int = 0, limits: Limits = NO_LIMITS
    ) -> tuple[Versions, Answer]:
        future: asyncio.Future[tuple[Versions, Answer]] = self._loop.create_future()
        self._check()
        if len(self._waiting) >= WAITING_MAX:
            raise Crowded("too many requests wait for the gate")
        self._now = now
        self._waiting.append(Request(name, what, asked_under, *limits, future))
        self._soon()
        return await future

    async def _raise(self, bits: int) -> Versions:
        """However many wait: all of these are one number of the next step."""
        future: asyncio.Future[Versions] = self._loop.create_future()
        self._check()
        self._raised.append((bits, future))
        self._soon()
        return await future

    def _check(self) -> None:
        if self._down is not None:
            raise Unavailable("the gate is down")

    def _soon(self) -> None:
        if self._stepping is None and not self._starting:
            # Not at once: what else this turn of the loop brings goes into the same step.
            self._starting = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        self._stepping = self._loop.create_task(self._run())

    async def _run(self) -> None:
        """Step after step until nobody waits."""
        try:
            while self._waiting or self._raised:
                requests, self._waiting = self._waiting[:STEP_MAX], self._waiting[STEP_MAX:]
                raised, self._raised = self._raised, []
                GATE_QUEUE.set(len(requests) + len(self._waiting))
                try:
                    await self._step(requests, raised)
                except Unavailable as error:
                    self._fail(error, requests, raised)
                except Exception as error:  # whatever it is, nobody may be left waiting
                    self._fail(Unavailable(f"the gate failed: {error!r}"), requests, raised)
        finally:
            GATE_QUEUE.set(0)
            self._stepping = None

    async def _step(self, requests: list[Request], raised: "list[tuple[int, asyncio.Future[Versions]]]") -> None:
        bits = 0 if self._fresh and self._link.connected() else ALL_VERSIONS
        for bit, _ in raised:
            bits |= bit
        now = str(int(self._now * SECOND)) if self._given_clock else ""
        async with _patience():
            versions, answers = await self._link.step(now, self._bans, bits, requests)
        self._fresh = True
        if requests:
            GATE_BATCH.observe(len(requests))
        for _, waiter in raised:
            if not waiter.done():
                waiter.set_result(versions)
        for request, answer in zip(requests, answers, strict=True):
            future = request.future
            if future.done():
                continue  # its client has gone
            if isinstance(answer, Unavailable):
                self._health.error()
                future.set_exception(answer)
            else:
                future.set_result((versions, answer))

    def _fail(
        self, outage: Unavailable, requests: list[Request], raised: "list[tuple[int, asyncio.Future[Versions]]]"
    ) -> None:
        """Nobody waits for a Redis that is down: all who do, and all who come, are told at once, until it is back."""
        self._fresh = False
        # Futures of different results: all that matters here is that they can fail.
        everyone: list[asyncio.Future[object]] = [
            *(request.future for request in [*requests, *self._waiting]),  # type: ignore[list-item]  # see above
            *(waiter for _, waiter in [*raised, *self._raised]),  # type: ignore[list-item]  # see above
        ]
        self._waiting, self._raised = [], []
        for future in everyone:
            if not future.done():
                future.set_exception(Unavailable(str(outage)))
        self._health.failed(outage)
        if self._down is None:
            self._down = self._loop.create_task(self._until_back())

    async def _until_back(self) -> None:
        answered = False
        while not answered:
            await asyncio.sleep(PROBE_EVERY)
            with contextlib.suppress(Exception):
                await self._step([], [])
                answered = True
        self._health.worked(surely=True)
        self._down = None


@contextlib.asynccontextmanager
async def _patience() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except TimeoutError:
        raise Unavailable("the gate did not answer in time") from None


def name_of(key_id: str) -> str:
    """The braces are Redis' hash tag: all that belongs to one API key lies in one slot."""
    return f"petstore:key:{{{key_id}}}"


def _key_id_in(name: bytes) -> str:
    return name.decode().partition("{")[2].removesuffix("}")


def _address_name(environment: Environment, address: str) -> str:
    return f"petstore:address:{{{environment}-{bucket_of(address).hex()}}}"


def _unpacked(value: bytes | None) -> Windows:
    return Windows._make(_windows.unpack(value)) if value else Windows()


def _life(w: Windows) -> int:
    """How long a record may matter, in milliseconds: no less than the script says."""
    return DAY + w.ban_end - w.ban_start + MINUTE


def _decision(answer: Answer) -> Decision:
    outcome, window, limit, remaining, reset, wait = answer
    return Decision(_OUTCOME[outcome], _WINDOW[window], limit, remaining, reset, wait)


def packed(requests: Iterable[Request]) -> bytes:
    """Requests as the script reads them."""
    pack = _request.pack
    return b"".join([pack(r.what, r.asked_under, r.per_minute, r.per_day) for r in requests])


def versions_in(reply: bytes) -> Versions:
    versions: Versions = _versions.unpack_from(reply)
    return versions


def answers_in(reply: bytes | memoryview) -> list[Answer]:
    return list(_answer.iter_unpack(reply))


def keys_version_of(what: int, versions: Versions) -> int:
    """The version that a request of a key is compared with."""
    return versions[1 if what == KEY_LIVE else 3]


assert ENVIRONMENTS == ("live", "staging")  # the order of the versions
