"""The deadline of each request in flight: when it passes, the client gets a 503, whatever the request waits for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from petstore.errors import Unavailable

INTERVAL = 0.05  # seconds between two looks at the requests in flight

T = TypeVar("T")
Task = asyncio.Task[Any]


class Deadlines:
    """One timer looks at all requests, because a timer for each would cost 4 to 8 µs.

    A request begins with the time of the last look, and ends with the last look before its deadline. So it ends up to
    two intervals early, and never late.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        # By the task that answers the request; in their order, because each request has the same time.
        self._in_flight: dict[Task, float] = {}
        self._next = 0.0  # the deadline of a request that begins now; 0 while no timer runs
        self._passed: set[Task] = set()  # tasks that were cancelled, until their requests end

    def begin(self) -> Task:
        """The deadline of the request that the present task answers begins. Returns the task."""
        task = _present_task()
        self._in_flight[task] = self._next or self._look()
        return task

    def end(self, task: Task) -> None:
        """The request of this task has its response."""
        if self._in_flight.pop(task, None) is None and task in self._passed:
            self._passed.remove(task)
            task.uncancel()

    def has_passed(self, task: Task | None) -> bool:
        return task in self._passed

    def current(self) -> float:
        """The deadline of the present task, by `time.monotonic`."""
        return self._in_flight[_present_task()]

    async def pause(self, waiting: Awaitable[T]) -> T:
        """Await something that is up to the client. If the present task has a deadline, it begins again afterwards."""
        if self._in_flight.pop(_present_task(), None) is None:
            return await waiting
        try:
            return await waiting
        finally:
            self.begin()

    def cause(self, task: Task | None, error: BaseException) -> Exception:
        """The error; Unavailable for the cancellation at the deadline. Raises any other cancellation."""
        if isinstance(error, Exception):
            return error
        if self.has_passed(task):
            return Unavailable("the request was not finished by its deadline")
        if task is not None:
            self.end(task)
        raise error

    def _look(self) -> float:
        """Cancel the tasks whose deadline is about to pass; again and again. Returns the next deadline."""
        now = self._clock()
        while self._in_flight:
            task, deadline = next(iter(self._in_flight.items()))
            if deadline > now + INTERVAL:
                break
            del self._in_flight[task]
            self._passed.add(task)
            task.cancel()
        asyncio.get_running_loop().call_later(INTERVAL, self._look_again)
        self._next = now + self._seconds
        return self._next

    def _look_again(self) -> None:
        if self._in_flight:
            self._look()
        else:
            self._next = 0.0  # and no timer runs


def _present_task() -> Task:
    task = asyncio.current_task()
    assert task is not None
    return task
