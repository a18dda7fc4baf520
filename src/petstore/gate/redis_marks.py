"""The marks of keys that were found valid, in Redis.

Clients can make up keys by the thousand, and each is asked for once its address is over its limit. So all that wait are
asked for in one command, and the next command waits for its answer: a flood takes turns with the batches of decisions.
"""

import asyncio
import contextlib

from petstore.errors import Unavailable
from petstore.gate import DIGEST_LENGTH, VALID_SECONDS
from petstore.gate.redis_errors import QueueFull, time_limit
from petstore.gate.redis_link import Link
from petstore.rate_limits import SECOND

TIMEOUT = 1.0  # seconds
BATCH_MAX = 500
WAITING_MAX = 20_000


class ValidMarks:
    def __init__(self, link: Link, *, waiting_max: int = WAITING_MAX) -> None:
        self._link = link
        self._waiting_max = waiting_max
        self._waiting: list[tuple[str, asyncio.Future[bool]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def put(self, digest: bytes, *, valid: bool) -> None:
        async with time_limit(TIMEOUT):
            await self._link.put([(_record(digest), b"1", VALID_SECONDS * SECOND if valid else 1)])

    async def has(self, digest: bytes) -> bool:
        if len(self._waiting) >= self._waiting_max:
            raise QueueFull("too many requests wait for the gate")
        loop = asyncio.get_running_loop()
        found: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((_record(digest), found))
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
        return await found

    async def _ask(self) -> None:
        try:
            while self._waiting:
                asked, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                try:
                    async with time_limit(TIMEOUT):
                        values = await self._link.values([name for name, _ in asked])
                except BaseException as error:
                    is_closed = isinstance(error, asyncio.CancelledError)
                    for _, found in asked:
                        if not found.done():
                            found.set_exception(Unavailable("the gate is closed") if is_closed else error)
                    if is_closed:
                        raise
                    continue
                for (_, found), value in zip(asked, values, strict=True):
                    if not found.done():  # otherwise the caller was cancelled
                        found.set_result(value is not None)
        finally:
            self._asking = None

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking
        for _, found in self._waiting:
            if not found.done():
                found.set_exception(Unavailable("the gate is closed"))
        self._waiting = []


def _record(digest: bytes) -> str:
    return f"petstore:valid:{digest[:DIGEST_LENGTH].hex()}"
