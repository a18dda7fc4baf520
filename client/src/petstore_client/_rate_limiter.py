"""Decides when each call may send a request, for all threads and tasks that share a client and an API key. No I/O.

Calls wait in a queue. The number of requests in flight never exceeds `max_connections` or, if the service says how many
requests remain, that number. A 429, an outage or a 401 pauses all calls. After a pause, and before the first response,
one request at a time probes the service, until a response shows that it serves the key.
"""

import contextlib
import copy
import math
from collections import OrderedDict, deque
from itertools import chain
from threading import Lock
from typing import Any, Literal, NamedTuple

from petstore_client._errors import ApiError, PetstoreError, TimedOut
from petstore_client._events import Events, Wait, logger, wait_reason
from petstore_client._keys import Key, Secret
from petstore_client._messages import Failure, Response
from petstore_client._models import RateLimit
from petstore_client._responses import rate_limit_of
from petstore_client._retries import Call, Kind, delay_after, kind_of

REFUSED_FOR = 60.0  # seconds; how long nothing is sent after a 401
LONG_QUEUE = 1.0  # seconds; a longer wait for a permit is reported


class Hold(NamedTuple):
    """Tells a call to ask again after this time, or earlier if it is woken."""

    seconds: float
    is_pause: bool = False
    """Whether the time is the rest of a pause. Otherwise, it is only a limit."""


class _Pause(NamedTuple):
    """A pause of all calls. It lasts until its end, but only one request at a time is sent until a response ends it."""

    kind: Kind | Literal["renewal"] | None
    """Why there is a pause. `renewal`: the API key was refused and is being loaded again."""
    error: PetstoreError
    end: float
    number: int
    """How many times in a row the service was unavailable or refused a request."""


NO_PAUSE = _Pause(None, PetstoreError("", code=""), -math.inf, 0)


class RateLimiter:
    """Grants permits to send requests. Times are in seconds on a monotonic clock."""

    def __init__(self, key: Key, max_connections: int, events: Events, *, has_responded: bool = False) -> None:
        if max_connections < 1:
            raise ValueError("max_connections must be at least 1")
        self.key = key
        self.max_connections: int = max_connections
        self.has_responded: bool = has_responded
        """Whether the service has ever responded."""
        self.rate_limit: RateLimit | None = None
        self._events = events
        self._lock = Lock()  # never held while waiting, so asyncio tasks can use it safely
        self._in_flight = 0
        self._probes = 0  # requests in flight that were sent after the last pause began
        # The queue, with the time since when each call has been waiting. Calls that are retried go first.
        self._new: OrderedDict[Call, float] = OrderedDict()
        self._retried: OrderedDict[Call, float] = OrderedDict()
        self._is_queue_reported = False
        self._pause = NO_PAUSE
        self._is_pause_reported = False
        self._waits: deque[Wait] = deque()  # to report
        self._pauses = 0
        self._resumed = -math.inf

    def ask(self, call: Call, now: float) -> Hold | None:
        """Takes a permit and returns None, or puts the call in the queue and returns how long it has to wait.

        Raises PetstoreError if the call cannot send a request before its deadline, or if the key has just been refused.
        Every call that ends without `finish` must `leave`.
        """
        with self._lock:
            hold = self._ask(call, now)
        self._report_waits()
        return hold

    def leave(self, call: Call) -> None:
        """Removes a call that has ended. Returns its permit if it has one."""
        with self._lock:
            self._new.pop(call, None)
            self._retried.pop(call, None)
            self._take_back(call)
            self._wake_first()

    def renew(self, call: Call, loaded: Secret | Exception, now: float) -> None:
        """Makes a call use the secret that was loaded.

        Raises Unauthorized if this is the secret that has just been refused, or the exception if loading failed.
        """
        with self._lock:
            pause = self._pause
            if isinstance(loaded, Secret):
                if self.key.use(loaded, now) or pause.kind != "renewal":
                    call.secret = self.key.secret
                    return
            elif pause.kind not in ("renewal", "unauthorized"):
                raise loaded
            self._lock_out(pause.error, now)
        raise _copy(pause.error) from (loaded if isinstance(loaded, Exception) else None)

    def finish(
        self, call: Call, outcome: Response | Failure, error: PetstoreError | None, now: float, fraction: float
    ) -> float:
        """Returns the permit of a call that got an outcome. Returns the earliest moment for its next attempt.

        Returns infinity if a refused key rules out another attempt. `error` is None if the call succeeded.
        """
        with self._lock:
            self._take_back(call)
            call.finish(kind_of(outcome), error)
            again = now if error is None else now + delay_after(error, call.failures, fraction)
            if isinstance(outcome, Response):
                self.has_responded = True
                self._learn(outcome)
            if error is None or call.kind in ("response", "late", "crash"):
                if call.pauses == self._pauses and now >= self._pause.end:
                    self._resumed = self._resumed if self._pause is NO_PAUSE else now
                    self._pause = NO_PAUSE
            elif call.kind == "unauthorized":
                again = self._refuse(call, error, now)
            elif call.kind != "final":
                self._pause_all(call, error, now, fraction)
                if call.kind == "refused":
                    again = self._pause.end
                self._add_pause(now, int(again < self.end(call)))
            self._wake_first()
        self._report_waits()
        return again

    def warn_of_expiry(self, response: Response, unix: float) -> None:
        """Logs a warning, at most once a day, if the API key expires within 14 days."""
        with self._lock:
            warning = self.key.warning(response.headers.get("x-api-key-expires", ""), unix)
        if warning is not None:
            logger.warning("%s", warning)

    def end(self, call: Call) -> float:
        """Returns the moment before which the call's next request must be sent."""
        return call.end(is_unreachable=self._pause.kind == "unreachable" and not self.has_responded)

    def _report_waits(self) -> None:
        """Calls the caller's function without the lock, because it can take long and use the client."""
        with contextlib.suppress(IndexError):
            while True:
                self._events.wait(self._waits.popleft())

    # The methods below must be called with the lock held.

    def _ask(self, call: Call, now: float) -> Hold | None:
        end = self._raise_if_hopeless(call, now)
        queue = self._new if call.error is None else self._retried
        joined = queue.setdefault(call, now)
        if call is not self._first():
            return Hold(end - now)
        if now < self._pause.end:
            self._add_pause(now)
            return Hold(self._pause.end - now, is_pause=True)
        waited = now - max(joined, self._resumed)
        is_reported = self._is_queue_reported or self._pause is not NO_PAUSE
        if not is_reported and waited >= LONG_QUEUE:
            self._waits.append(Wait(waited, "queue", len(self._new) + len(self._retried)))
            self._is_queue_reported = is_reported = True
        if not self._has_permit():
            return Hold(end - now if is_reported else min(end - now, LONG_QUEUE - waited))
        del queue[call]
        self._in_flight += 1
        self._probes += 1
        call.start(now, self.key.secret, self._pauses)
        if not is_reported or self._has_permit():
            self._wake_first()
        return None

    def _raise_if_hopeless(self, call: Call, now: float) -> float:
        """Returns the moment before which the call must be sent. Raises PetstoreError if that is not possible."""
        end, pause = self.end(call), self._pause
        is_paused = now < pause.end
        if is_paused and pause.kind == "unauthorized":
            raise _copy(pause.error)
        if now < end and not (is_paused and pause.end >= end):
            return end
        if is_paused and pause.kind == "refused":
            raise _copy(pause.error, retry_after=pause.end - now)
        if pause.kind not in ("outage", "unreachable"):
            why = "earlier requests are still waiting for responses"
            raise call.error or TimedOut(f"not sent: {why}", code="timed_out")
        if call.error is None and self.has_responded:
            raise TimedOut("not sent: the service is unavailable", code="timed_out") from pause.error
        raise _copy(pause.error)

    def _has_permit(self) -> bool:
        """Returns whether another request may be sent."""
        if self._pause is not NO_PAUSE or not self.has_responded:
            return self._probes == 0 and self._in_flight < self.max_connections
        remaining = math.inf if self.rate_limit is None else max(self.rate_limit.remaining, 1)
        return self._in_flight < min(remaining, self.max_connections)

    def _first(self) -> Call | None:
        """Returns the call that sends the next request."""
        queues = [self._retried, self._new]
        if self._pause.kind == "outage":
            queues.reverse()  # so that a request that always breaks its connection is not every probe
        return next(chain(*queues), None)

    def _take_back(self, call: Call) -> None:
        self._in_flight -= call.has_permit
        self._probes -= call.has_permit and call.pauses == self._pauses
        call.has_permit = False

    def _wake_first(self) -> None:
        first = self._first()
        if first is not None:
            first.alarm.wake()
        else:
            self._is_queue_reported = False

    def _learn(self, response: Response) -> None:
        new, known = rate_limit_of(response.headers), self.rate_limit
        # The headers of a 401, and of other responses for an address, do not describe the key.
        if new is None or new.window == "address" or response.status == 401:
            return
        # Responses can arrive out of order, but `remaining` never increases in a window.
        if known is None or (known.limit, known.reset) != (new.limit, new.reset) or new.remaining < known.remaining:
            self.rate_limit = new

    def _pause_all(self, call: Call, error: PetstoreError, now: float, fraction: float) -> None:
        """Begins or prolongs a pause because of an error."""
        pause = self._pause
        if pause is NO_PAUSE or call.pauses == self._pauses:
            number = pause.number + 1
            self._begin(_Pause(call.kind, error, now + delay_after(error, number, fraction), number))
            return
        # The request was in flight when the pause began, so it failed for the same reason. It can only prolong it.
        asked = error.retry_after if isinstance(error, ApiError) else None
        if asked is not None and now + asked > pause.end:
            self._is_pause_reported &= wait_reason(error) == wait_reason(pause.error)
            self._pause = _Pause(call.kind, error, now + asked, pause.number)
            self._wake_hopeless()

    def _add_pause(self, now: float, others: int = 0) -> None:
        """Adds the pause to the waits to report, unless it has been reported or no call waits for it.

        `others` is the number of calls that wait outside the queue.
        """
        if self._is_pause_reported:
            return
        calls = others + sum(self._pause.end < self.end(call) for call in chain(self._new, self._retried))
        if calls:
            self._is_pause_reported = True
            self._waits.append(Wait(self._pause.end - now, wait_reason(self._pause.error), calls))

    def _refuse(self, call: Call, error: PetstoreError, now: float) -> float:
        """Reacts to a 401. Returns when the call may be repeated, or infinity if there is no newer secret."""
        kind = self._pause.kind
        if not self.key.can_renew(call.secret, now):
            if kind != "unauthorized" or call.pauses == self._pauses:
                self._lock_out(error, now)
            return math.inf
        if self.key.must_load and kind not in ("unauthorized", "renewal"):
            self._begin(_Pause("renewal", error, now, 0))
        return now

    def _lock_out(self, error: PetstoreError, now: float) -> None:
        self.key.expire()
        self._begin(_Pause("unauthorized", error, now + REFUSED_FOR, 0))

    def _begin(self, pause: _Pause) -> None:
        """Begins a pause, which lasts at least as long as an earlier one."""
        self._pause = pause._replace(end=max(pause.end, self._pause.end))
        self._is_pause_reported = False
        self._pauses += 1
        self._probes = 0
        self._wake_hopeless()

    def _wake_hopeless(self) -> None:
        """Wakes the calls that cannot wait for the end of the pause."""
        for call in chain(self._new, self._retried):
            if self._pause.kind == "unauthorized" or self._pause.end >= self.end(call):
                call.alarm.wake()


def _copy(error: PetstoreError, **changes: Any) -> PetstoreError:
    """Returns a copy of an error, so that calls do not share a traceback."""
    copied = copy.copy(error)
    copied.__dict__.update(changes)
    copied.__cause__ = error.__cause__
    return copied
