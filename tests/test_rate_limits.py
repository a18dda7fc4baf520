"""The windows against a naive reference model that keeps every timestamp and counts anew for each request."""

import os
import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from petstore.plans import Limits
from petstore.rate_limits import (
    ADMITTED,
    BANNED,
    DAY,
    LIMITED,
    MINUTE,
    BanPolicy,
    Decision,
    Windows,
    admit,
    admit_address,
    forgettable,
    lifted,
)

START = 1_800_000_000_000
POLICY = BanPolicy()


@dataclass
class Naive:
    """What the contract says, with no thought of speed: lists of timestamps, looked through for every request."""

    limits: Limits
    policy: BanPolicy
    admitted: list[int] = field(default_factory=list)
    strikes: list[tuple[int, int]] = field(default_factory=list)  # when, and the start of the window it fell in
    bans: list[tuple[int, int]] = field(default_factory=list)  # start and end

    def ask(self, now: int) -> Decision:
        per_minute, per_day = self.limits
        if self.bans and now < self.bans[-1][1]:
            return Decision(BANNED, "minute", per_minute, 0, self.bans[-1][1], self.bans[-1][1] - now)
        minute, minute_used = self._window(MINUTE, now)
        day, day_used = self._window(DAY, now)
        if minute_used < per_minute and day_used < per_day:
            self.admitted.append(now)
            minute, minute_used = self._window(MINUTE, now)
            day, day_used = self._window(DAY, now)
            assert minute is not None and day is not None
            if per_day - day_used <= per_minute - minute_used:
                return Decision(ADMITTED, "day", per_day, per_day - day_used, day + DAY, day + DAY - now)
            reset = minute + MINUTE
            return Decision(ADMITTED, "minute", per_minute, per_minute - minute_used, reset, reset - now)
        window = minute if minute is not None else self._strike_window(now)
        self.strikes.append((now, window))
        if sum(start == window for _, start in self.strikes) > (self.policy.threshold or per_minute):
            self.strikes.clear()
            return self._ban(now)
        ends = []
        if minute is not None and minute_used >= per_minute:
            ends.append((minute + MINUTE, 0, per_minute))
        if day is not None and day_used >= per_day:
            ends.append((day + DAY, 1, per_day))
        end, is_day, limit = max(ends)
        return Decision(LIMITED, "day" if is_day else "minute", limit, 0, end, end - now)

    def _window(self, length: int, now: int) -> tuple[int | None, int]:
        """The window open now and how many requests it holds."""
        start: int | None = None
        used = 0
        for at in self.admitted:
            if start is None or at >= start + length:
                start, used = at, 0
            used += 1
        if start is None or now >= start + length:
            return None, 0
        return start, used

    def _strike_window(self, now: int) -> int:
        started = self.strikes[-1][1] if self.strikes else None
        return started if started is not None and now < started + MINUTE else now

    def _ban(self, now: int) -> Decision:
        in_a_row = 1
        later = now
        for start, _ in reversed(self.bans):
            if later - start >= DAY:
                break
            in_a_row += 1
            later = start
        length = min(self.policy.length * 2 ** (in_a_row - 1), self.policy.ceiling)
        self.bans.append((now, now + length))
        return Decision(BANNED, "minute", self.limits.per_minute, 0, now + length, length)


def follow(gaps: list[int], limits: Limits, policy: BanPolicy) -> int:
    """Send the same requests to both; returns how many were compared."""
    naive = Naive(limits, policy)
    state = Windows()
    now = START
    for gap in gaps:
        now += gap
        state, decision = admit(state, limits, policy, now)
        assert decision == naive.ask(now), (limits, policy, gaps)
    return len(gaps)


# Gaps around the edges of windows and bans, where mistakes live.
EDGES = [0, 1, 999, 1_000, MINUTE - 1, MINUTE, MINUTE + 1, 2 * MINUTE, 3_600_000, DAY - 1, DAY, DAY + 1]


@settings(max_examples=500, deadline=None)
@given(
    gaps=st.lists(st.sampled_from(EDGES) | st.integers(0, 2 * MINUTE), max_size=80),
    limits=st.builds(Limits, st.integers(1, 8), st.integers(1, 30)),
    policy=st.builds(
        BanPolicy, st.sampled_from([1_000, 60_000]), st.sampled_from([2_000, 600_000, 3_600_000]), st.integers(0, 5)
    ),
)
def test_decisions_equal_the_naive_model(gaps: list[int], limits: Limits, policy: BanPolicy) -> None:
    follow(gaps, limits, policy)


def test_random_requests_are_decided_as_the_naive_model_decides_them() -> None:
    """PETSTORE_TEST_REQUESTS sets how many: 50,000 by default, a million for a long run."""
    dice = random.Random(20301205)
    compared = 0
    while compared < int(os.environ.get("PETSTORE_TEST_REQUESTS", "50000")):
        limits = Limits(dice.randint(1, 12), dice.randint(1, 60))
        policy = BanPolicy(dice.choice([1_000, 60_000]), dice.choice([60_000, 3_600_000]), dice.choice([0, 0, 1, 3]))
        pace = dice.choice([5, 500, 8_000, 70_000, 4_000_000])
        gaps = [dice.choice(EDGES) if dice.random() < 0.05 else dice.randint(0, pace) for _ in range(60)]
        compared += follow(gaps, limits, policy)


def test_a_key_that_nobody_has_used_has_no_past() -> None:
    assert Windows() == (0,) * 9
    assert BanPolicy() == (60_000, 3_600_000, 0)


def test_a_refused_request_consumes_nothing() -> None:
    state, _ = admit(Windows(), Limits(1, 10), POLICY, START)
    after, decision = admit(state, Limits(1, 10), POLICY, START + 5)
    assert decision.outcome is LIMITED
    assert (after.minute_used, after.day_used) == (state.minute_used, state.day_used)


def test_bans_double_up_to_the_ceiling_and_are_forgotten_after_a_day() -> None:
    limits, state, now, lengths = Limits(1, 1_000_000), Windows(), START, []
    for _ in range(9):
        for _ in range(3):  # one admitted, one strike, one strike too many
            state, decision = admit(state, limits, POLICY, now)
        assert decision.outcome is BANNED
        lengths.append(decision.wait // 1_000)
        now = decision.reset
    assert lengths == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    now += DAY
    for _ in range(3):
        state, decision = admit(state, limits, POLICY, now)
    assert decision.wait == 60_000


def test_a_clock_set_back_by_more_than_a_window_does_not_lock_a_key_out() -> None:
    state, _ = admit(Windows(), Limits(1, 1), POLICY, START + 10 * DAY)
    _, decision = admit(state, Limits(1, 1), POLICY, START)
    assert decision.outcome is ADMITTED


def test_lifting_ends_a_ban_at_once() -> None:
    state = Windows(ban_start=START, ban_end=START + 60_000, bans=3, minute_start=START, minute_used=1)
    assert admit(state, Limits(5, 5), POLICY, START + 1)[1].outcome is BANNED
    assert admit(lifted(state), Limits(5, 5), POLICY, START + 1)[1].outcome is ADMITTED


def test_a_record_is_forgettable_only_when_it_decides_nothing_any_more() -> None:
    state = Windows(START, 1, START, 1, START, 1, START, START + 60_000, 1)
    assert not forgettable(state, START + DAY - 1)
    assert forgettable(state, START + DAY)
    for now in (START + DAY, START + 2 * DAY):
        assert admit(state, Limits(3, 3), POLICY, now)[1] == admit(Windows(), Limits(3, 3), POLICY, now)[1]


@given(st.lists(st.integers(0, MINUTE), max_size=60), st.integers(1, 9))
def test_an_address_is_admitted_so_often_in_each_window(gaps: list[int], allowed: int) -> None:
    start = used = 0
    now, opened, count = START, None, 0
    for gap in gaps:
        now += gap
        if opened is None or now >= opened + MINUTE:
            opened, count = now, 0
        start, used, decision = admit_address(start, used, allowed, now)
        assert (decision.outcome is ADMITTED) == (count < allowed)
        count += count < allowed
        assert (decision.remaining, decision.reset) == (allowed - count, opened + MINUTE)
