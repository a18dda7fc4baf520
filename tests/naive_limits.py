"""A naive model of the rate limits, and random requests on which to compare it with the implementation.

The model follows the contract without optimisations: it keeps all timestamps and recounts them for each request.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, BANNED, DAY, LIMITED, MINUTE, BanPolicy, Decision, Window

START = 1_800_000_000_000
# Intervals close to the lengths of windows and bans, where mistakes are likely.
EDGES = [0, 1, 999, 1_000, MINUTE - 1, MINUTE, MINUTE + 1, 2 * MINUTE, 3_600_000, DAY - 1, DAY, DAY + 1]


@dataclass
class NaiveLimits:
    """The rate limits of one key. Assumes that the clock is never set back."""

    policy: BanPolicy
    admitted: list[int] = field(default_factory=list)
    strikes: list[int] = field(default_factory=list)  # refusals since the last admitted request or ban
    bans: list[tuple[int, int]] = field(default_factory=list)  # start and end

    def ask(self, limits: Limits, now: int) -> Decision:
        per_minute, per_day = limits
        minute, minute_used = self._window(MINUTE, now)
        day, day_used = self._window(DAY, now)
        if not self._is_banned(now):
            if minute_used < per_minute and day_used < per_day:
                return self._admit(limits, now)
            self.strikes.append(now)
            if len(self.strikes) > (self.policy.threshold or min(per_minute, 1_000)):
                self._ban(now)

        # When the ban and each exhausted window end.
        ends: list[tuple[int, int, Window, int]] = []
        if self._is_banned(now):
            ends.append((self.bans[-1][1], 0, "minute", per_minute))
        if minute is not None and minute_used >= per_minute:
            ends.append((minute + MINUTE, 1, "minute", per_minute))
        if day is not None and day_used >= per_day:
            ends.append((day + DAY, 2, "day", per_day))
        end, _, window, limit = max(ends)
        return Decision(BANNED if self._is_banned(now) else LIMITED, window, limit, 0, end, end - now)

    def _admit(self, limits: Limits, now: int) -> Decision:
        self.admitted.append(now)
        self.strikes.clear()
        minute, minute_used = self._window(MINUTE, now)
        day, day_used = self._window(DAY, now)
        assert minute is not None and day is not None
        of_minute = (limits.per_minute - minute_used, 1, "minute", limits.per_minute, minute + MINUTE)
        of_day = (limits.per_day - day_used, 0, "day", limits.per_day, day + DAY)
        least = of_day if of_day < of_minute else of_minute
        return Decision(ADMITTED, least[2], least[3], least[0], least[4], least[4] - now)  # type: ignore[arg-type]  # a window

    def _window(self, length: int, now: int) -> tuple[int | None, int]:
        """Returns the start of the open window and the number of its requests, or None and 0 if no window is open."""
        start: int | None = None
        used = 0
        for at in self.admitted:
            if start is None or at >= start + length:
                start, used = at, 0
            used += 1
        if start is None or now >= start + length:
            return None, 0
        return start, used

    def _is_banned(self, now: int) -> bool:
        return bool(self.bans) and now < self.bans[-1][1]

    def _ban(self, now: int) -> None:
        self.strikes.clear()
        in_a_row = 1
        later = now
        for start, _ in reversed(self.bans):
            if later - start >= DAY:
                break
            in_a_row += 1
            later = start
        self.bans.append((now, now + min(self.policy.length * 2 ** (in_a_row - 1), self.policy.ceiling)))


def random_policy(dice: random.Random) -> BanPolicy:
    return BanPolicy(dice.choice([1_000, 60_000]), dice.choice([60_000, 3_600_000]), dice.choice([0, 0, 1, 3]))


def random_limits(dice: random.Random) -> Limits:
    return Limits(dice.randint(1, 12), dice.randint(1, 60))


def random_times(dice: random.Random, count: int) -> Iterator[int]:
    """Yields the times of requests at random intervals, some of them near the end of a window or ban."""
    now, pace = START, dice.choice([5, 500, 8_000, 70_000, 4_000_000])
    for _ in range(count):
        now += dice.choice(EDGES) if dice.random() < 0.05 else dice.randint(0, pace)
        yield now
