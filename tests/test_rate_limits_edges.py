"""The edges of the windows, to the millisecond: what random requests seldom meet."""

import gc

import pytest

from petstore.plans import Limits
from petstore.rate_limits import (
    DAY,
    MINUTE,
    SECOND,
    BanPolicy,
    Decision,
    Outcome,
    Windows,
    admit,
    admit_address,
    forgettable,
    lifted,
)

NOW = 40 * DAY
PLENTY = Limits(1_000, 1_000)
POLICY = BanPolicy()


def decide(w: Windows, limits: Limits = PLENTY, now: int = NOW, policy: BanPolicy = POLICY) -> tuple[Windows, Decision]:
    return admit(w, limits, policy, now)


def test_units_and_outcomes_are_what_the_gates_agree_on() -> None:
    assert (SECOND, MINUTE, DAY) == (1_000, 60_000, 86_400_000)
    assert [(outcome.name, outcome.value) for outcome in Outcome] == [("ADMITTED", 0), ("LIMITED", 1), ("BANNED", 2)]


def test_a_decision_does_not_change_and_is_nothing_for_the_collector() -> None:
    _, decision = decide(Windows())
    with pytest.raises(AttributeError):
        decision.limit = 1  # type: ignore[misc]  # what must not work
    assert not gc.is_tracked(decision)


@pytest.mark.parametrize(
    ("used_up", "limits", "back"),
    [
        (Windows(minute_start=NOW, minute_used=1), Limits(1, 1_000), MINUTE),
        (Windows(day_start=NOW, day_used=1), Limits(1_000, 1), DAY),
    ],
    ids=["minute", "day"],
)
def test_a_clock_set_back_by_a_whole_window_opens_a_new_one(used_up: Windows, limits: Limits, back: int) -> None:
    assert decide(used_up, limits, NOW - back + 1)[1].outcome is Outcome.LIMITED
    assert decide(used_up, limits, NOW - back)[1].outcome is Outcome.ADMITTED


def test_a_ban_holds_for_a_clock_set_back_by_a_day_and_no_longer() -> None:
    banned = Windows(ban_start=NOW, ban_end=NOW + MINUTE, bans=1)
    assert decide(banned, now=NOW - DAY)[1].outcome is Outcome.BANNED
    assert decide(banned, now=NOW - DAY - 1)[1].outcome is Outcome.ADMITTED


def test_a_new_minute_forgets_the_strikes() -> None:
    after, _ = decide(Windows(minute_start=NOW - MINUTE, strike_start=NOW - MINUTE, strikes=3))
    assert (after.minute_start, after.minute_used, after.strikes) == (NOW, 1, 0)


def test_strikes_of_an_exhausted_day_count_within_a_minute_of_their_own() -> None:
    tired = Windows(day_start=NOW, day_used=1, strike_start=NOW, strikes=1)
    for now, counted in ((NOW - MINUTE + 1, (NOW, 2)), (NOW - MINUTE, (NOW - MINUTE, 1)), (NOW + MINUTE - 1, (NOW, 2))):
        after, _ = decide(tired, Limits(1_000, 1), now)
        assert (after.strike_start, after.strikes) == counted


def test_a_ban_a_day_after_the_last_is_a_first_one_again() -> None:
    for ago, bans in ((DAY - 1, 3), (DAY, 1)):
        struck = Windows(NOW, 1, NOW, 1, NOW, 1, NOW - ago, NOW - ago + 1, 2)
        after, decision = decide(struck, Limits(1, 1_000), policy=BanPolicy(threshold=1))
        assert (after.bans, after.ban_start, after.strike_start, after.strikes) == (bans, NOW, 0, 0)
        assert (decision.outcome, decision.remaining) == (Outcome.BANNED, 0)


def test_doubling_ends_at_some_time() -> None:
    struck = Windows(NOW, 1, NOW, 1, NOW, 1, NOW - 1, NOW - 1, 60)
    after, _ = decide(struck, Limits(1, 1_000), policy=BanPolicy(length=1, ceiling=1 << 60, threshold=1))
    assert after.ban_end - after.ban_start == 1 << 40


def test_a_refusal_speaks_of_the_window_that_is_exhausted_and_in_a_tie_of_the_day() -> None:
    ends_soon = NOW + 30 * SECOND - DAY
    for w, limits, window, reset in (
        (Windows(NOW, 4, ends_soon, 9), Limits(5, 9), "day", NOW + 30 * SECOND),
        (Windows(NOW, 5, NOW, 8), Limits(5, 9), "minute", NOW + MINUTE),
        (Windows(NOW, 5, NOW + MINUTE - DAY, 9), Limits(5, 9), "day", NOW + MINUTE),
        (Windows(NOW, 5, ends_soon, 9), Limits(5, 9), "minute", NOW + MINUTE),
    ):
        _, decision = decide(w, limits)
        assert (decision.outcome, decision.window, decision.reset) == (Outcome.LIMITED, window, reset)
        assert (decision.remaining, decision.wait) == (0, reset - NOW)


def test_an_address_s_window_to_the_millisecond() -> None:
    for now, outcome, wait in (
        (NOW - MINUTE, Outcome.ADMITTED, MINUTE),
        (NOW - MINUTE + 1, Outcome.LIMITED, 2 * MINUTE - 1),
        (NOW + MINUTE - 1, Outcome.LIMITED, 1),
        (NOW + MINUTE, Outcome.ADMITTED, MINUTE),
    ):
        decision = admit_address(NOW, 1, 1, now)[2]
        assert (decision.outcome, decision.wait) == (outcome, wait)


def test_lifting_leaves_what_was_used_and_nothing_of_bans() -> None:
    assert lifted(Windows(1, 2, 3, 4, 5, 6, 7, 8, 9)) == (1, 2, 3, 4, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("field", "span"),
    [("minute_start", MINUTE), ("day_start", DAY), ("strike_start", MINUTE), ("ban_start", DAY), ("ban_end", 0)],
)
def test_a_record_is_forgettable_to_the_millisecond(field: str, span: int) -> None:
    assert forgettable(Windows()._replace(**{field: NOW - span}), NOW)
    assert not forgettable(Windows()._replace(**{field: NOW - span + 1}), NOW)
