"""Limits the requests of one client, of all its threads and tasks together, so that a pool earns no ban. No I/O.

Three rules. After a 429 no call sends until the pause is over. No more requests are in flight than the last response
said remain: one, while nothing is known or nothing remains. So one request is refused, and the others learn from it.
And while no response arrives, one more request may start now and then, ever less often: all may have been refused.
"""

import math
from threading import Lock
from typing import NamedTuple

from petstore_client._errors import RateLimited
from petstore_client._messages import Failure, Response
from petstore_client._models import RateLimit
from petstore_client._responses import rate_limit_of
from petstore_client._retries import delay_after, next_slot

SILENCE_TIMEOUT = 1.0  # seconds
_MINUTE = 66.0  # seconds, with a margin
_MAX_PERMITS = 2**20


class Hold(NamedTuple):
    """Do not send yet: wait for the end of a pause or, without a pause, for the response to another request."""

    pause_end: float = -math.inf
    refusal: RateLimited | None = None
    """The 429 that caused the pause."""


class RateLimiter:
    """Times are seconds of one clock that does not run backwards."""

    def __init__(self, slot: int = 0) -> None:
        self._slot = slot
        self._lock = Lock()  # never held during a wait, so tasks may take it as well as threads
        self._in_flight = 0
        self._permits = 1
        self._last_start = -math.inf
        self._extra = 0  # requests that started beyond the permits since the last response
        self._lowest_limit = math.inf
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
            if self._in_flight >= self._permits:
                if now - self._last_start < self._silence_timeout():
                    return Hold()
                self._extra += 1
            self._in_flight += 1
            self._last_start = now
            return None

    def release(self, started: float, outcome: Response | Failure | None = None) -> None:
        """Give back the permit of a request sent at `started`. Without an outcome, the call was abandoned."""
        limit = None if outcome is None else rate_limit_of(outcome)
        with self._lock:
            self._in_flight -= 1
            if isinstance(outcome, Response):
                self._extra = 0
            if isinstance(outcome, Response) and outcome.status != 429 and started >= self._pause_end:
                self._refusals = 0
            if limit is not None:
                self.rate_limit = _newer(self.rate_limit, limit)
                self._permits = max(self.rate_limit.remaining, 1)
                self._lowest_limit = min(self._lowest_limit, max(limit.limit, 1))
            elif isinstance(outcome, Response) or (outcome is not None and outcome.unsent):
                # The request met no rate limit: it never left, or nothing at the base URL limits requests.
                self._permits = min(self._permits * 2, _MAX_PERMITS)

    def pause(
        self, refusal: RateLimited, started: float, now: float, fractions: tuple[float, float] = (0.0, 0.0)
    ) -> float:
        """Pause all calls after a 429 for a request sent at `started`; return when the pause ends.

        The pause lasts at least the `Retry-After`. The backoff on top doubles each time the client is refused again.
        The pause ends in the client's time slot, so that processes that share a key do not return together.
        To be called before `release`, so that no other call starts in between.
        """
        with self._lock:
            if started >= self._pause_end:  # otherwise the request was in flight when this pause began
                self._refusals += 1
            delay = delay_after(refusal, self._refusals, fractions[0])
            end = next_slot(now + delay, self._slot, fractions[1])
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

    def _silence_timeout(self) -> float:
        """How long without a response until one more request may start: too long for these requests to earn a ban.

        A ban takes more refusals in a row than the limit per minute. A minute that is used up ends the row when it is
        over: until then fewer requests start than the limit. A day that is used up does not: so the time doubles.
        A response may show the limit of the day, so the lowest limit counts.
        """
        return max(SILENCE_TIMEOUT, _MINUTE / self._lowest_limit) * 2.0 ** min(self._extra, 30)


def _newer(seen: RateLimit | None, new: RateLimit) -> RateLimit:
    """The state after both. Responses can overtake each other, but within a window `remaining` only falls."""
    if seen is not None and (seen.limit, seen.reset) == (new.limit, new.reset) and seen.remaining < new.remaining:
        return seen
    return new
