"""The pace of one client, shared by all of its threads and tasks, so that a pool of them cannot earn a ban. No I/O.

Two rules. After a 429 nobody sends until its pause is over. And there are never more requests under way than the last
answer said remain: one, as long as nothing is known or nothing remains. So at most one request asks in vain, and the
others learn from its answer.
"""

import math
from threading import Lock
from typing import NamedTuple

from petstore_client._errors import RateLimited
from petstore_client._models import RateLimit

PATIENCE = 1.0
_MANY = 2**20


class Hold(NamedTuple):
    """Not yet: a pause has to end first or, without one, the answer to another request has to come."""

    pause_end: float = -math.inf
    refusal: RateLimited | None = None
    """The 429 whose pause it is."""


class Pace:
    """Times are seconds of any one clock that does not run backwards."""

    def __init__(self) -> None:
        self._lock = Lock()  # never held across a wait, so that it serves tasks as well
        self._under_way = 0
        self._places = 1
        self._last_start = -math.inf
        self._pause_end = -math.inf
        self._refusal: RateLimited | None = None
        self.rate_limit: RateLimit | None = None

    def enter(self, now: float) -> Hold | None:
        """Take a place among the requests under way, which `leave` gives back; or learn what to wait for."""
        with self._lock:
            if now < self._pause_end:
                return Hold(self._pause_end, self._refusal)
            if self._under_way >= self._places and now - self._last_start < self._patience():
                return Hold()
            self._under_way += 1
            self._last_start = now
            return None

    def leave(
        self,
        rate_limit: RateLimit | None = None,
        refusal: RateLimited | None = None,
        pause_end: float = -math.inf,
        *,
        unlimited: bool = False,
    ) -> None:
        """Give the place back and tell what the answer said, in one step, or another would start between the two.

        `unlimited` tells that the request cannot have met a limit: it never left, or nobody here speaks of limits.
        """
        with self._lock:
            self._under_way -= 1
            if refusal is not None and pause_end > self._pause_end:
                self._pause_end = pause_end
                self._refusal = refusal
            if rate_limit is not None:
                self.rate_limit = _later(self.rate_limit, rate_limit)
                self._places = max(self.rate_limit.remaining, 1)
            elif unlimited:
                self._places = min(self._places * 2, _MANY)

    def _patience(self) -> float:
        """After how much silence one more may ask: if all of these were refused, they would still not earn a ban."""
        return PATIENCE if self.rate_limit is None else max(PATIENCE, 66 / max(self.rate_limit.limit, 1))


def _later(seen: RateLimit | None, new: RateLimit) -> RateLimit:
    """The state after both. Answers may overtake each other, but within a window what remains only falls."""
    if seen is not None and (seen.limit, seen.reset) == (new.limit, new.reset) and seen.remaining < new.remaining:
        return seen
    return new
