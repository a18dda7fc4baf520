"""Limits requests from all threads and tasks that share a client, so that the API key is not banned. No I/O.

After a 429, no call sends a request until the pause is over. The number of requests in flight never exceeds the
`remaining` in the last response, but one request is always allowed. Before the first response, only one request may be
in flight. As a result, the service usually rejects only one request when the limit is reached.
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
    """Tells a call to wait until a pause ends or, if there is no pause, until another request has finished."""

    pause_end: float = -math.inf
    refusal: RateLimited | None = None
    """The 429 that caused the pause."""


class RateLimiter:
    """Grants permits to send requests. Times are in seconds on a monotonic clock."""

    def __init__(self) -> None:
        self._lock = Lock()  # never held while waiting, so asyncio tasks can use it safely
        self._in_flight = 0
        self._pause_end = -math.inf
        self._logged_pause_end = -math.inf
        self._refusal: RateLimited | None = None
        self._refusals = 0
        self.rate_limit: RateLimit | None = None

    def acquire(self, now: float) -> Hold | None:
        """Takes a permit and returns None, or returns a `Hold` if no permit is free. Every permit must be released."""
        with self._lock:
            if now < self._pause_end:
                return Hold(self._pause_end, self._refusal)
            remaining = 0 if self.rate_limit is None else self.rate_limit.remaining
            if self._in_flight >= max(remaining, 1):
                return Hold()
            self._in_flight += 1
            return None

    def release(self, started: float, outcome: Response | Failure | None = None) -> None:
        """Releases the permit for a request that was sent at `started`. `outcome` is None if the call was cancelled."""
        limit = None if outcome is None else rate_limit_of(outcome)
        with self._lock:
            self._in_flight -= 1
            if isinstance(outcome, Response) and outcome.status != 429 and started >= self._pause_end:
                self._refusals = 0
            if limit is not None:
                self.rate_limit = _newer(self.rate_limit, limit)

    def pause(self, refusal: RateLimited, started: float, now: float, fraction: float) -> float:
        """Pauses all calls because a request sent at `started` received a 429. Returns the time when the pause ends.

        Must be called before `release`, so that no other call can send a request in between.
        """
        with self._lock:
            if started >= self._pause_end:  # ignore requests that were in flight when this pause began
                self._refusals += 1
            end = now + delay_after(refusal, self._refusals, fraction)
            if end > self._pause_end:
                self._pause_end = end
                self._refusal = refusal
            return self._pause_end

    def is_first_to_wait(self, pause_end: float) -> bool:
        """Returns whether this call is the first to wait for the pause. Only the first call logs the pause."""
        with self._lock:
            is_first = pause_end > self._logged_pause_end
            self._logged_pause_end = max(pause_end, self._logged_pause_end)
            return is_first


def _newer(seen: RateLimit | None, new: RateLimit) -> RateLimit:
    """Returns the more recent state. Responses can arrive out of order, but `remaining` never increases in a window."""
    if seen is not None and (seen.limit, seen.reset) == (new.limit, new.reset) and seen.remaining < new.remaining:
        return seen
    return new
