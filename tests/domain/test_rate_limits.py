"""Compares the rate limits with a naive model, and checks that Retry-After is correct."""

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from petstore.plans import Limits
from petstore.rate_limits import (
    ADMITTED,
    BANNED,
    DAY,
    LIMITED,
    MINUTE,
    SECOND,
    BanPolicy,
    Used,
    Windows,
    admit,
    admit_address,
    used,
)
from tests.naive_limits import EDGES, START, NaiveLimits

POLICY = BanPolicy()

gaps_of = st.lists(st.sampled_from(EDGES) | st.integers(0, 2 * MINUTE), max_size=80)
limits_of = st.builds(Limits, st.integers(1, 8), st.integers(1, 30))
policy_of = st.builds(
    BanPolicy, st.sampled_from([1_000, 60_000]), st.sampled_from([2_000, 600_000, 3_600_000]), st.integers(0, 5)
)


@settings(max_examples=200, deadline=None)
@given(gaps_of, st.lists(limits_of, min_size=1, max_size=3), policy_of)
def test_decisions_equal_the_naive_model(gaps: list[int], plans: list[Limits], policy: BanPolicy) -> None:
    """The key's plan changes between requests. Requests that were already counted still count."""
    naive, record, now = NaiveLimits(policy), Windows(), START
    for number, gap in enumerate(gaps):
        now += gap
        limits = plans[number * len(plans) // len(gaps)]
        record, decision = admit(record, limits, policy, now)
        assert decision == naive.ask(limits, now)


def retry_after(wait: int) -> int:
    """Returns the value of Retry-After for a wait, in milliseconds."""
    return max(1, -(-wait // SECOND)) * SECOND


moments = st.sampled_from([START, START - 1, START + 1]) | st.integers(START - 3 * DAY, START + 3 * DAY)
records = st.builds(
    lambda minute, minute_used, day, day_used, strikes, ban, length, bans: Windows(
        minute, minute_used, day, day_used, strikes, ban if bans else 0, ban + length if bans else 0, bans
    ),
    minute=moments,
    minute_used=st.integers(0, 9),
    day=moments,
    day_used=st.integers(0, 31),
    strikes=st.integers(0, 9),
    ban=moments,
    length=st.sampled_from([1_000, 1_001, 59_999, MINUTE, 3_600_000]),
    bans=st.integers(0, 3),
)


@settings(max_examples=300, deadline=None)
@given(records, limits_of, policy_of, st.integers(0, 999))
@example(Windows(START - MINUTE + 1, 1, START, 1, 1), Limits(1, 9), BanPolicy(1_000, 1_000, 1), 0)
@example(Windows(START - MINUTE + 1, 1, START - DAY + 1, 9, 1), Limits(1, 9), BanPolicy(1_000, 1_000, 1), 0)
@example(Windows(START + 3 * MINUTE, 1, START, 9, 0), Limits(1, 9), BanPolicy(), 0)
@example(Windows(START + 7 * DAY, 1, START, 9, 0, START + DAY + 1, START + DAY + MINUTE, 1), Limits(1, 9), POLICY, 0)
def test_after_every_429_a_request_that_waited_for_retry_after_is_admitted(
    record: Windows, limits: Limits, policy: BanPolicy, later: int
) -> None:
    """Covers windows and bans that end at the same time, lowered limits, and clocks that were set back."""
    after, decision = admit(record, limits, policy, START)
    assume(decision.outcome is not ADMITTED)
    assert decision.wait == decision.reset - START >= 1
    assert admit(after, limits, policy, START + retry_after(decision.wait) + later)[1].outcome is ADMITTED
    assert admit(after, limits, policy, decision.reset)[1].outcome is ADMITTED
    assert admit(after, limits, policy, decision.reset - 1)[1].outcome is not ADMITTED


@given(st.integers(0, 9), st.integers(1, 9), st.integers(-2 * MINUTE, 2 * MINUTE))
def test_retry_after_of_an_address_is_true(count: int, per_minute: int, ago: int) -> None:
    start, used_up, decision = admit_address(START - ago, count, per_minute, START)
    assume(decision.outcome is LIMITED)
    assert admit_address(start, used_up, per_minute, START + retry_after(decision.wait))[2].outcome is ADMITTED


def test_the_threshold_is_the_limit_per_minute_and_at_most_1000() -> None:
    for per_minute, threshold, strikes in ((7, 0, 7), (1_000, 0, 1_000), (5_000, 0, 1_000), (5_000, 2_000, 2_000)):
        policy = BanPolicy(threshold=threshold)
        record = Windows(START, per_minute, START, 1, strikes - 1)
        record, decision = admit(record, Limits(per_minute, 10**6), policy, START)
        assert (decision.outcome, record.strikes) == (LIMITED, strikes)
        record, decision = admit(record, Limits(per_minute, 10**6), policy, START)
        assert (decision.outcome, record.strikes) == (BANNED, 0)


def test_a_clock_that_is_set_back_does_not_lock_a_key_out() -> None:
    record, _ = admit(Windows(), Limits(1, 1), POLICY, START + 10 * DAY)
    assert admit(record, Limits(1, 1), POLICY, START)[1].outcome is ADMITTED
    banned = record._replace(ban_start=START + 10 * DAY, ban_end=START + 11 * DAY, bans=1)
    after, decision = admit(banned, Limits(1, 1), POLICY, START)
    assert decision.outcome is ADMITTED
    assert (after.ban_start, after.ban_end, after.bans) == (0, 0, 0)  # or the ban would apply again in nine days


@given(records, limits_of)
def test_what_is_used_agrees_with_the_next_decision(record: Windows, limits: Limits) -> None:
    minute, day, banned_until = used(record, START)
    _, decision = admit(record, limits, BanPolicy(threshold=10**9), START)
    assert (decision.outcome is BANNED) == (banned_until > 0)
    if not banned_until:
        assert (decision.outcome is ADMITTED) == (minute < limits.per_minute and day < limits.per_day)


def test_what_is_used_counts_open_windows_and_a_ban_in_force() -> None:
    record = Windows(START, 3, START, 7, 0, START, START + 90_000, 1)
    assert used(record, START) == Used(3, 7, START + 90_000)
    assert used(record, START + MINUTE) == Used(0, 7, START + 90_000)
    assert used(record, START + 90_000) == Used(0, 7, 0)
    assert used(record, START + DAY) == used(Windows(), START) == Used(0, 0, 0)


@given(st.lists(st.integers(0, MINUTE), max_size=60), st.integers(1, 9))
def test_an_address_is_admitted_up_to_its_limit_in_each_window(gaps: list[int], allowed: int) -> None:
    start = count = 0
    now, opened, counted = START, None, 0
    for gap in gaps:
        now += gap
        if opened is None or now >= opened + MINUTE:
            opened, counted = now, 0
        start, count, decision = admit_address(start, count, allowed, now)
        assert (decision.outcome is ADMITTED) == (counted < allowed)
        counted += counted < allowed
        assert (decision.remaining, decision.reset) == (allowed - counted, opened + MINUTE)
