"""A pool of workers that share one client, against a model of the service: discrete events on a simulated clock."""

import functools
import heapq
import itertools
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from fakes import REX, error, limits, operations, response
from petstore_client import PetstoreError
from petstore_client._messages import Failure, Request, Response
from petstore_client._operations import Options

MINUTE = 60.0
DAY = 86_400


class Model:
    """The service's rate limit, naively: a window opens with its first request; refusals in a row can be a ban."""

    def __init__(self, limit: int, per_day: float = math.inf) -> None:
        self.limit = limit
        self.per_day = per_day
        """Of one day, which does not end."""
        self.created: set[str] = set()
        self.window = -MINUTE
        self.used = 0
        self.refusals: dict[float, int] = {}
        """How many requests each window refused."""
        self.bans = 0
        self._strikes = 0

    def handle(self, request: Request, now: float) -> Response:
        if now >= self.window + MINUTE:
            self.window, self.used = now, 0
        day_left = self.per_day - len(self.created)
        if day_left <= 0:
            self._refuse()
            return error(429, "rate_limit_exceeded", retry_after=DAY, **limits(int(self.per_day), 0, DAY))
        reset = int(self.window + MINUTE) + 1
        if self.used >= self.limit:
            self.refusals[self.window] = self.refusals.get(self.window, 0) + 1
            self._refuse()
            seconds = max(1, -int((now - self.window - MINUTE) // 1))
            return error(429, "rate_limit_exceeded", retry_after=seconds, **limits(self.limit, 0, reset))
        self.used += 1
        self._strikes = 0
        self.created.add(request.headers["Idempotency-Key"])
        if day_left <= self.limit - self.used:
            return response(201, REX, **limits(int(self.per_day), int(day_left) - 1, DAY))
        return response(201, REX, **limits(self.limit, self.limit - self.used, reset))

    def _refuse(self) -> None:
        self._strikes += 1
        if self._strikes > self.limit:
            self.bans += 1


class Trip(NamedTuple):
    """How one request travels."""

    out: float
    back: float
    lost: str = ""
    """`"unsent"`: there is no connection. `"out"`: it never arrives. `"back"`: its response never arrives."""


class Pool:
    """Runs `workers` that each make some calls, one after the other, all through one client."""

    def __init__(self, model: Model, options: Options, trip: Callable[[], Trip], seed: int = 0) -> None:
        self.now = 0.0
        self.model = model
        self.operations = operations(lambda: self.now, options, random=random.Random(seed).random)
        self.failed: list[PetstoreError] = []
        self.sent: list[float] = []
        self.pauses: list[tuple[float, float]] = []
        """When a 429 arrived, and until when it forbids to send."""
        self.longest_call = 0.0
        self._trip = trip
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def run(self, workers: int, calls: int) -> None:
        for worker in range(workers):
            self._at(0.0, functools.partial(self._next_call, worker, calls))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), event))

    def _next_call(self, worker: int, left: int) -> None:
        if left:
            call = self.operations.create_pet("Rex", 7, idempotency_key=f"{worker}-{left}")
            began = self.now

            def done() -> None:
                self.longest_call = max(self.longest_call, self.now - began)
                self._next_call(worker, left - 1)

            self._step(call, None, done)

    def _step(
        self, call: Coroutine[Any, Any, Any], outcome: Response | Failure | None, done: Callable[[], None]
    ) -> None:
        try:
            step = call.send(outcome)
        except StopIteration:
            return done()
        except PetstoreError as raised:
            self.failed.append(raised)
            return done()
        if isinstance(step, Request):
            self.sent.append(self.now)
            trip = self._trip()
            self._at(self.now + trip.out, lambda: self._arrive(call, step, trip, done))
        else:
            self._at(self.now + step.seconds, lambda: self._step(call, None, done))
        return None

    def _arrive(self, call: Coroutine[Any, Any, Any], request: Request, trip: Trip, done: Callable[[], None]) -> None:
        outcome: Response | Failure = Failure(OSError("lost"), "no response", unsent=trip.lost == "unsent")
        if trip.lost in ("", "back"):
            answered = self.model.handle(request, self.now)
            if not trip.lost:
                outcome = answered

        def come_back() -> None:
            if isinstance(outcome, Response) and outcome.status == 429:
                self.pauses.append((self.now, self.now + float(outcome.headers["retry-after"])))
            self._step(call, outcome, done)

        self._at(self.now + trip.back, come_back)

    def sent_too_early(self) -> list[tuple[float, float]]:
        """Requests sent during a known pause: when, and the end of the pause."""
        return [(sent, end) for sent in self.sent for known, end in self.pauses if known < sent < end]
