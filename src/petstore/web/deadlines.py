"""The deadline of each request in flight: when it passes, the client gets a 503, whatever the request waits for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from petstore.errors import Unavailable
from petstore.web.requests import Request

INTERVAL = 0.05  # seconds between two looks at the requests in flight

T = TypeVar("T")
Task = asyncio.Task[Any]


def present_task() -> Task:
    task = asyncio.current_task()
    assert task is not None
    return task


class Deadlines:
    """One timer looks at all requests, because a timer for each would cost 4 to 8 µs.

    A request begins with the time of the last look, and ends with the last look before its deadline. So it ends up to
    two intervals early, and never late.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._deadlines: dict[Task, float] = {}  # in their order, because each request has the same time
        self._passed: set[Task] = set()  # tasks that were cancelled, until they notice
        self._next = 0.0  # the deadline of a request that begins now
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: Task) -> None:
        """The deadline of the request that this task answers begins."""
        if self._timer is None:
            self._look()
        self._deadlines[task] = self._next

    def end(self, task: Task) -> None:
        """The request of this task has its response."""
        if self._deadlines.pop(task, None) is None and task in self._passed:
            self._passed.remove(task)
            task.uncancel()

    def has_passed(self, task: Task) -> bool:
        return task in self._passed

    def of(self, request: Request) -> float:
        """The deadline of a request in flight, by `time.monotonic`."""
        return self._deadlines[request.task or present_task()]

    async def pause(self, waiting: Awaitable[T]) -> T:
        """Await something that is up to the client. The deadline of the present task begins again afterwards."""
        task = present_task()
        del self._deadlines[task]
        try:
            return await waiting
        finally:
            self.begin(task)

    def cause(self, task: Task, error: BaseException) -> Exception:
        """The error; Unavailable for the cancellation at the deadline. Raises any other cancellation."""
        if isinstance(error, Exception):
            return error
        if not self.has_passed(task):
            self.end(task)
            raise error
        return Unavailable("the request was not finished by its deadline")

    def _look(self) -> None:
        now = self._clock()
        self._next = now + self._seconds
        while self._deadlines:
            task, deadline = next(iter(self._deadlines.items()))
            if deadline > now + INTERVAL:
                break
            del self._deadlines[task]
            self._passed.add(task)
            task.cancel()
        # Without a request in flight, no timer runs.
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._deadlines:
            self._look()
