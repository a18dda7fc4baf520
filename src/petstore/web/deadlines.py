"""Deadlines for requests in flight. If a request's deadline passes, the client receives a 503."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from petstore.errors import Unavailable

INTERVAL = 0.05  # seconds between checks of the requests in flight

T = TypeVar("T")
Task = asyncio.Task[Any]


class Deadlines:
    """Cancels requests that are about to exceed their deadlines.

    One timer checks all requests, because a separate timer would cost each request 4 to 8 µs. A request's deadline is
    calculated from the time of the last check, and the request is cancelled at the last check before its deadline. As a
    result, a request can be cancelled up to two intervals early, but never late.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        # Maps each task to its deadline. The earliest deadline comes first, because all requests have the same time
        # limit.
        self._in_flight: dict[Task, float] = {}
        self._next = 0.0  # the deadline of a request that begins now; 0 if the timer is not running
        self._passed: set[Task] = set()  # cancelled tasks whose requests have not ended yet

    def begin(self) -> Task:
        """Sets a deadline for the current task's request, and returns the task."""
        task = _current_task()
        self._in_flight[task] = self._next or self._check()
        return task

    def end(self, task: Task) -> None:
        """Removes the task's deadline. Called when the response is ready."""
        if self._in_flight.pop(task, None) is None and task in self._passed:
            self._passed.remove(task)
            task.uncancel()

    def has_passed(self, task: Task | None) -> bool:
        return task in self._passed

    def current(self) -> float:
        """Returns the current task's deadline, as a value of `time.monotonic`."""
        return self._in_flight[_current_task()]

    async def pause(self, waiting: Awaitable[T]) -> T:
        """Awaits `waiting` without a deadline. If the current task had a deadline, sets a new one afterwards."""
        if self._in_flight.pop(_current_task(), None) is None:
            return await waiting
        try:
            return await waiting
        finally:
            self.begin()

    def cause(self, task: Task | None, error: BaseException) -> Exception:
        """Returns the error, or Unavailable if a deadline caused the cancellation. Reraises any other cancellation."""
        if isinstance(error, Exception):
            return error
        if self.has_passed(task):
            return Unavailable("the request exceeded its deadline")
        if task is not None:
            self.end(task)
        raise error

    def _check(self) -> float:
        """Cancels tasks whose deadlines are about to pass, and restarts the timer. Returns a new request's deadline."""
        now = self._clock()
        while self._in_flight:
            task, deadline = next(iter(self._in_flight.items()))
            if deadline > now + INTERVAL:
                break
            del self._in_flight[task]
            self._passed.add(task)
            task.cancel()
        asyncio.get_running_loop().call_later(INTERVAL, self._check_again)
        self._next = now + self._seconds
        return self._next

    def _check_again(self) -> None:
        if self._in_flight:
            self._check()
        else:
            self._next = 0.0  # the timer is not running


def _current_task() -> Task:
    task = asyncio.current_task()
    assert task is not None
    return task
