"""Figures that take the longer to reckon the more there is: the last known one is at hand, a new one on its way."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from petstore.errors import Unavailable
from petstore.observability.logs import event

T = TypeVar("T")

PATIENCE = 0.08  # seconds that a page waits for a new figure
FRESH = 2.0  # seconds for which a figure is new enough
SHARE = 50  # a figure is reckoned for at most this part of the time, however long it takes


class Known(NamedTuple, Generic[T]):
    value: T
    age: float  # seconds


class BackgroundValue(Generic[T]):
    """One figure. `reckon` runs at most once at a time, and never longer than a small part of the time."""

    def __init__(self, reckon: Callable[[], Awaitable[T]]) -> None:
        self._reckon = reckon
        self._running: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._at = float("-inf")
        self._due = float("-inf")

    async def latest(self) -> Known[T] | None:
        """A new figure if it comes quickly, else the last one; None when there is none yet."""
        if time.monotonic() >= self._due and self._running is None:
            self._running = asyncio.create_task(self._run())
        if self._running is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._running), PATIENCE)
        return None if self._value is None else Known(self._value, time.monotonic() - self._at)

    def outdated(self) -> None:
        """Something was changed here: whoever looks next should see it."""
        self._due = float("-inf")

    async def _run(self) -> None:
        began = time.monotonic()
        self._due = float("inf")
        try:
            self._value = await self._reckon()
            self._at = time.monotonic()
        except Unavailable as error:  # the page says how old its figure is
            event(logging.WARNING, "figure not reckoned", cause=str(error))
        finally:
            self._running = None
            if self._due == float("inf"):
                took = time.monotonic() - began
                self._due = time.monotonic() + max(FRESH, SHARE * took)
