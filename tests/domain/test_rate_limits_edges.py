"""The exact milliseconds at which windows and bans end, which random requests rarely hit."""

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
    lifted,
)

NOW = 40 * DAY
PLENTY = Limits(1_000, 1_000)
POLICY = BanPolicy()


def decide(w: Windows, limits: Limits = PLENTY, now: int = NOW, policy: BanPolicy = POLICY) -> tuple[Windows, Decision]:
    return admit(w, limits, policy, now)


def test_units_and_outcomes_are_those_of_the_script() -> None:
    assert (SECOND, MINUTE, DAY) == (1_000, 60_000, 86_400_000)
    assert [(outcome.name, outcome.value) for outcome in Outcome] == [("ADMITTED", 0), ("LIMITED", 1), ("BANNED", 2)]


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


def test_a_ban_holds_when_the_clock_is_set_back_by_at_most_a_day() -> None:
    banned = Windows(ban_start=NOW, ban_end=NOW + MINUTE, bans=1)
    assert decide(banned, now=NOW - DAY)[1].outcome is Outcome.BANNED
    assert decide(banned, now=NOW - DAY - 1)[1].outcome is Outcome.ADMITTED


def test_a_ban_a_day_after_the_last_is_a_first_one_again() -> None:
    for ago, bans in ((DAY - 1, 3), (DAY, 1)):
        struck = Windows(NOW, 1, NOW, 1, 1, NOW - ago, NOW - ago + 1, 2)
        after, decision = decide(struck, Limits(1, 1_000), policy=BanPolicy(threshold=1))
        assert (after.bans, after.ban_start, after.strikes) == (bans, NOW, 0)
        assert (decision.outcome, decision.remaining) == (Outcome.BANNED, 0)


def test_doubling_is_bounded() -> None:
    struck = Windows(NOW, 1, NOW, 1, 1, NOW - 1, NOW - 1, 60)
    after, _ = decide(struck, Limits(1, 1_000), policy=BanPolicy(length=1, ceiling=1 << 60, threshold=1))
    assert after.ban_end - after.ban_start == 1 << 40


def test_a_refusal_shows_the_exhausted_window_that_reopens_last_and_in_a_tie_the_day() -> None:
    ends_soon = NOW + 30 * SECOND - DAY
    for w, limits, window, reset in (
        (Windows(NOW, 4, ends_soon, 9), Limits(5, 9), "day", NOW + 30 * SECOND),
        (Windows(NOW, 5, NOW, 8), Limits(5, 9), "minute", NOW + MINUTE),
        (Windows(NOW, 5, NOW + MINUTE - DAY, 9), Limits(5, 9), "day", NOW + MINUTE),
        (Windows(NOW, 5, ends_soon, 9), Limits(5, 9), "minute", NOW + MINUTE),
    ):
        _, decision = decide(w, limits)
        assert (decision.outcome, decision.window, decision.reset) == (Outcome.LIMITED, window, reset)
        assert (decision.limit, decision.remaining, decision.wait) == (5 if window == "minute" else 9, 0, reset - NOW)


@pytest.mark.parametrize(
    ("minute_used", "day_start", "day_used", "ban_end", "window", "reset"),
    [
        (5, NOW, 8, NOW + MINUTE + 1, "minute", NOW + MINUTE + 1),
        (5, NOW, 8, NOW + MINUTE - 1, "minute", NOW + MINUTE),
        (0, NOW, 9, NOW + MINUTE, "day", NOW + DAY),
        (0, NOW + MINUTE - DAY, 9, NOW + MINUTE, "day", NOW + MINUTE),
        (0, NOW + MINUTE - DAY, 9, NOW + MINUTE + 1, "minute", NOW + MINUTE + 1),
        (5, NOW + SECOND - DAY, 9, NOW + 2 * SECOND, "minute", NOW + MINUTE),
    ],
    ids=["ban last", "minute last", "day last", "day and ban at once", "ban after the day", "all three"],
)
def test_a_banned_key_gets_the_later_of_its_ban_and_its_exhausted_windows(
    minute_used: int, day_start: int, day_used: int, ban_end: int, window: str, reset: int
) -> None:
    banned = Windows(NOW, minute_used, day_start, day_used, 0, NOW, ban_end, 1)
    after, decision = decide(banned, Limits(5, 9))
    assert after is banned
    assert (decision.outcome, decision.window, decision.remaining) == (Outcome.BANNED, window, 0)
    assert (decision.limit, decision.reset, decision.wait) == (5 if window == "minute" else 9, reset, reset - NOW)


def test_a_ban_that_begins_in_the_last_millisecond_of_a_window_names_its_own_end() -> None:
    struck = Windows(NOW - MINUTE + 1, 5, NOW - DAY + 1, 9, 5)
    after, decision = decide(struck, Limits(5, 9))
    assert (decision.outcome, decision.reset) == (Outcome.BANNED, NOW + MINUTE)
    assert decide(after, Limits(5, 9), NOW + MINUTE)[1].outcome is Outcome.ADMITTED


def test_the_window_of_an_address_to_the_millisecond() -> None:
    for now, outcome, wait in (
        (NOW - MINUTE, Outcome.ADMITTED, MINUTE),
        (NOW - MINUTE + 1, Outcome.LIMITED, 2 * MINUTE - 1),
        (NOW + MINUTE - 1, Outcome.LIMITED, 1),
        (NOW + MINUTE, Outcome.ADMITTED, MINUTE),
    ):
        decision = admit_address(NOW, 1, 1, now)[2]
        assert (decision.outcome, decision.wait) == (outcome, wait)


def test_lifting_keeps_what_was_used_and_nothing_of_bans() -> None:
    assert lifted(Windows(1, 2, 3, 4, 5, 6, 7, 8)) == (1, 2, 3, 4, 0, 0, 0, 0)
