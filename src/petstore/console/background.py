"""Values that are slow to compute: a page shows the last result while a new one is computed in the background."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from petstore.errors import Unavailable
from petstore.observability.logs import event

T = TypeVar("T")

WAIT_TIMEOUT = 0.08  # seconds that a page waits for a new result
FRESH_SECONDS = 2.0  # a result younger than this is not computed again
PAUSE_FACTOR = 50  # a computation of one second is followed by a pause of 50, so the store is rarely busy with it


class Result(NamedTuple, Generic[T]):
    value: T
    age: float  # seconds


class BackgroundValue(Generic[T]):
    """One value. `compute` runs at most once at a time, and for at most a small part of the time."""

    def __init__(self, compute: Callable[[], Awaitable[T]], *, wait_timeout: float = WAIT_TIMEOUT) -> None:
        self._compute = compute
        self._wait_timeout = wait_timeout
        self._task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._computed_at = float("-inf")
        self._due = float("-inf")

    async def latest(self, *, first_timeout: float = 0.0) -> Result[T] | None:
        """The new result if it is ready in time, else the last one. None when nothing was computed yet.

        A page that would be wrong without any result waits up to `first_timeout` seconds for the first one.
        """
        if time.monotonic() >= self._due and self._task is None:
            self._task = asyncio.create_task(self._run())
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                timeout = max(first_timeout, self._wait_timeout) if self._value is None else self._wait_timeout
                await asyncio.wait_for(asyncio.shield(self._task), timeout)
        return None if self._value is None else Result(self._value, time.monotonic() - self._computed_at)

    def invalidate(self) -> None:
        """The operator changed the data: the next page computes the value again."""
        self._due = float("-inf")

    async def _run(self) -> None:
        began = time.monotonic()
        self._due = float("inf")
        try:
            self._value = await self._compute()
            self._computed_at = time.monotonic()
        except Unavailable as error:  # the page shows the age of the last result
            event(logging.WARNING, "background value failed", cause=str(error))
        finally:
            self._task = None
            if self._due == float("inf"):  # otherwise the value was invalidated while it was computed
                took = time.monotonic() - began
                self._due = time.monotonic() + max(FRESH_SECONDS, PAUSE_FACTOR * took)
