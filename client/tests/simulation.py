"""A pool of workers sharing one client, against a model of the service: discrete events on a clock of their own."""

import functools
import heapq
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from fakes import REX, answer, core, error, limits
from petstore_client import PetstoreError
from petstore_client._core import Rules
from petstore_client._steps import Answer, Failure, Flow, Send

MINUTE = 60.0


class Model:
    """The service's limit, naively: a window opens with the first request in it; strikes beyond `limit` are a ban."""

    def __init__(self, limit: int, strikes_allowed: int | None = None) -> None:
        self.limit = limit
        self.strikes_allowed = limit if strikes_allowed is None else strikes_allowed
        self.created: set[str] = set()
        self.window = -MINUTE
        self.used = 0
        self.strikes: dict[float, int] = {}
        self.bans = 0

    def handle(self, send: Send, now: float) -> Answer:
        if now >= self.window + MINUTE:
            self.window, self.used = now, 0
        reset = int(self.window + MINUTE) + 1
        if self.used >= self.limit:
            self.strikes[self.window] = self.strikes.get(self.window, 0) + 1
            if self.strikes[self.window] > self.strikes_allowed:
                self.bans += 1
            seconds = max(1, -int((now - self.window - MINUTE) // 1))
            return error(429, "rate_limit_exceeded", retry_after=seconds, **limits(self.limit, 0, reset))
        self.used += 1
        self.created.add(send.headers["Idempotency-Key"])
        return answer(201, REX, **limits(self.limit, self.limit - self.used, reset))


class Trip(NamedTuple):
    """How one request travels."""

    out: float
    back: float
    lost: str = ""
    """`"unsent"`: there is no connection. `"out"`: it never arrives. `"back"`: its answer never does."""


class Pool:
    """Runs `workers` that each make some calls, one after the other, all through one core."""

    def __init__(self, model: Model, rules: Rules, trip: Callable[[], Trip]) -> None:
        self.now = 0.0
        self.model = model
        self.core = core(lambda: self.now, rules)
        self.failed: list[PetstoreError] = []
        self.sent: list[float] = []
        self.refused: list[tuple[float, float]] = []
        """When a 429 was known, and until when it forbids to send."""
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
            flow = self.core.create_pet("Rex", 7, None, f"{worker}-{left}")
            began = self.now

            def done() -> None:
                self.longest_call = max(self.longest_call, self.now - began)
                self._next_call(worker, left - 1)

            self._step(flow, lambda: next(flow), done)

    def _step(self, flow: Flow[Any], resume: Callable[[], Any], done: Callable[[], None]) -> None:
        try:
            step = resume()
        except StopIteration:
            return done()
        except PetstoreError as raised:
            self.failed.append(raised)
            return done()
        if isinstance(step, Send):
            self.sent.append(self.now)
            trip = self._trip()
            self._at(self.now + trip.out, lambda: self._arrive(flow, step, trip, done))
        else:
            self._at(self.now + step.seconds, lambda: self._step(flow, lambda: next(flow), done))
        return None

    def _arrive(self, flow: Flow[Any], send: Send, trip: Trip, done: Callable[[], None]) -> None:
        outcome: Answer | Failure = Failure(OSError("lost"), "no answer", unsent=trip.lost == "unsent")
        if trip.lost in ("", "back"):
            given = self.model.handle(send, self.now)
            if not trip.lost:
                outcome = given

        def come_back() -> None:
            if isinstance(outcome, Answer) and outcome.status == 429:
                self.refused.append((self.now, self.now + float(outcome.headers["retry-after"])))
            self._step(flow, lambda: flow.send(outcome), done)

        self._at(self.now + trip.back, come_back)

    def sent_too_early(self) -> list[tuple[float, float]]:
        """Requests that were sent while a known 429 forbade it: its moment, and the end of the pause."""
        return [(sent, end) for sent in self.sent for known, end in self.refused if known < sent < end]
