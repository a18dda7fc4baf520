"""Limits for failed sign-ins: how often a client may try a token, and how many failures the audit log records."""

from collections.abc import Callable

from petstore.gate import bucket_of
from petstore.rate_limits import ADMITTED, SECOND, admit_address

FAILURES_PER_MINUTE = 10
ENTRIES_PER_MINUTE = 10
COUNTERS_MAX = 10_000
PREFIX_LENGTH = 12  # "pets_op_" and four characters more


class SignInLimits:
    """Counts failures per client address and token prefix.

    A client that guesses cannot lock out an operator, not even one with the same address: their tokens have different
    prefixes. Guessing with ever new prefixes is hopeless, since a token has 178 random bits.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[tuple[bytes, str], tuple[int, int]] = {}

    def retry_after(self, address: str, token: str) -> int:
        """Seconds until the client may try such a token again; 0 when it may now."""
        start, used = self._failures.get(_counter(address, token), (0, 0))
        decision = admit_address(start, used, FAILURES_PER_MINUTE, self._now)[2]
        return 0 if decision.outcome is ADMITTED else -(-decision.wait // SECOND)

    def add_failure(self, address: str, token: str) -> None:
        counter = _counter(address, token)
        start, used = self._failures.pop(counter, (0, 0))
        if len(self._failures) >= COUNTERS_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[counter] = admit_address(start, used, FAILURES_PER_MINUTE, self._now)[:2]

    @property
    def _now(self) -> int:
        return int(self._clock() * SECOND)


class FailureThrottle:
    """Selects the failures to record, so that a client without a token cannot fill the audit log.

    Per minute, at most one for each address and ENTRIES_PER_MINUTE in all. The others are counted.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._minute_start = float("-inf")
        self._recorded: set[bytes] = set()
        self._others = 0

    def add(self, address: str) -> int | None:
        """None: do not record this failure. Otherwise the number of failures since the last recorded one."""
        now, bucket = self._clock(), bucket_of(address)
        if not 0 <= now - self._minute_start < 60:
            self._minute_start, self._recorded = now, set()
        if bucket in self._recorded or len(self._recorded) >= ENTRIES_PER_MINUTE:
            self._others += 1
            return None
        self._recorded.add(bucket)
        return self.take_others()

    def take_others(self) -> int:
        """The number of failures since the last recorded one, which counts from 0 again."""
        others, self._others = self._others, 0
        return others


def _counter(address: str, token: str) -> tuple[bytes, str]:
    return bucket_of(address), token[:PREFIX_LENGTH]
