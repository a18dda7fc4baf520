"""Limits the requests of one client, of all its threads and tasks together, so that a pool earns no ban. No I/O.

Two rules. After a 429 no call sends until the pause is over. No more requests are in flight than the last response said
remain, at least one; until a response has said a number, one. So one request is refused, and the others learn from it.
"""

import math
from threading import Lock
from typing import NamedTuple

from petstore_client._errors import RateLimited
from petstore_client._messages import Failure, Response
from petstore_client._models import RateLimit
from petstore_client._responses import rate_limit_of
from petstore_client._retries import delay_after


class Hold(NamedTuple):
    """Do not send yet: wait for the end of a pause or, without a pause, for the response to another request."""

    pause_end: float = -math.inf
    refusal: RateLimited | None = None
    """The 429 that caused the pause."""


class RateLimiter:
    """Times are seconds of one clock that does not run backwards."""

    def __init__(self) -> None:
        self._lock = Lock()  # never held during a wait, so tasks may take it as well as threads
        self._in_flight = 0
        self._pause_end = -math.inf
        self._logged_pause_end = -math.inf
        self._refusal: RateLimited | None = None
        self._refusals = 0
        self.rate_limit: RateLimit | None = None

    def acquire(self, now: float) -> Hold | None:
        """Take a permit to send, which `release` gives back, and return None; or return what to wait for."""
        with self._lock:
            if now < self._pause_end:
                return Hold(self._pause_end, self._refusal)
            remaining = 0 if self.rate_limit is None else self.rate_limit.remaining
            if self._in_flight >= max(remaining, 1):
                return Hold()
            self._in_flight += 1
            return None

    def release(self, started: float, outcome: Response | Failure | None = None) -> None:
        """Give back the permit of a request sent at `started`. Without an outcome, the call was abandoned."""
        limit = None if outcome is None else rate_limit_of(outcome)
        with self._lock:
            self._in_flight -= 1
            if isinstance(outcome, Response) and outcome.status != 429 and started >= self._pause_end:
                self._refusals = 0
            if limit is not None:
                self.rate_limit = _newer(self.rate_limit, limit)

    def pause(self, refusal: RateLimited, started: float, now: float, fraction: float) -> float:
        """Pause all calls after a 429 for a request sent at `started`; return when the pause ends.

        To be called before `release`, so that no other call starts in between.
        """
        with self._lock:
            if started >= self._pause_end:  # otherwise the request was in flight when this pause began
                self._refusals += 1
            end = now + delay_after(refusal, self._refusals, fraction)
            if end > self._pause_end:
                self._pause_end = end
                self._refusal = refusal
            return self._pause_end

    def is_first_to_wait(self, pause_end: float) -> bool:
        """Whether no other call has asked this about the pause: one log line for each pause is enough."""
        with self._lock:
            is_first = pause_end > self._logged_pause_end
            self._logged_pause_end = max(pause_end, self._logged_pause_end)
            return is_first


def _newer(seen: RateLimit | None, new: RateLimit) -> RateLimit:
    """The state after both. Responses can overtake each other, but within a window `remaining` only falls."""
    if seen is not None and (seen.limit, seen.reset) == (new.limit, new.reset) and seen.remaining < new.remaining:
        return seen
    return new
