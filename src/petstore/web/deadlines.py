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
        # By the task that answers the request; in their order, because each request has the same time.
        self.in_flight: dict[Task, float] = {}
        self.next = 0.0  # the deadline of a request that begins now; 0 while no timer runs
        self._passed: set[Task] = set()  # tasks that were cancelled, until their requests end

    def begin(self, task: Task) -> None:
        """The deadline of the request that this task answers begins."""
        self.in_flight[task] = self.next or self.look()

    def end(self, task: Task) -> None:
        """The request of this task has its response."""
        if self.in_flight.pop(task, None) is None and task in self._passed:
            self._passed.remove(task)
            task.uncancel()

    def has_passed(self, task: Task) -> bool:
        return task in self._passed

    def of(self, request: Request) -> float:
        """The deadline of a request in flight, by `time.monotonic`."""
        return self.in_flight[request.task or present_task()]

    async def pause(self, waiting: Awaitable[T]) -> T:
        """Await something that is up to the client. The deadline of the present task begins again afterwards."""
        task = present_task()
        del self.in_flight[task]
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

    def look(self) -> float:
        """Cancel the tasks whose deadline is about to pass; again and again. Returns the next deadline."""
        now = self._clock()
        while self.in_flight:
            task, deadline = next(iter(self.in_flight.items()))
            if deadline > now + INTERVAL:
                break
            del self.in_flight[task]
            self._passed.add(task)
            task.cancel()
        asyncio.get_running_loop().call_later(INTERVAL, self._look_again)
        self.next = now + self._seconds
        return self.next

    def _look_again(self) -> None:
        if self.in_flight:
            self.look()
        else:
            self.next = 0.0  # and no timer runs
