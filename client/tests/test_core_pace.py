"""The pace that threads and tasks share, rule by rule."""

import pytest

from fakes import REX, Clock, Run, answer, core, error, limits
from petstore_client import KeyBanned, RateLimit, RateLimited, TimedOut
from petstore_client._core import LONGEST_HOLD
from petstore_client._pace import PATIENCE, Hold, Pace
from petstore_client._steps import Send, Wait


def state(remaining: int, limit: int = 60, reset: int = 5000) -> RateLimit:
    return RateLimit(limit, remaining, reset)


def entered(pace: Pace, now: float = 0.0, most: int = 1000) -> int:
    """How many may start at once."""
    return next(count for count in range(most + 1) if count == most or pace.enter(now) is not None)


def test_one_request_goes_first_and_the_others_wait_for_its_answer() -> None:
    pace = Pace()
    assert pace.enter(0.0) is None
    assert pace.enter(0.0) == Hold()
    pace.leave(state(59))
    assert entered(pace) == 59


@pytest.mark.parametrize(("remaining", "places"), [(0, 1), (1, 1), (7, 7)])
def test_never_more_are_under_way_than_the_last_answer_said_remain(remaining: int, places: int) -> None:
    pace = Pace()
    pace.enter(0.0)
    pace.leave(state(remaining))
    assert entered(pace) == places


def test_after_a_silence_one_more_may_ask() -> None:
    pace = Pace()
    assert entered(pace, 0.0) == 1
    assert entered(pace, PATIENCE - 0.01) == 0
    assert entered(pace, PATIENCE) == 1
    assert entered(pace, PATIENCE) == 0


def test_the_silence_is_longer_when_the_limit_is_low() -> None:
    pace = Pace()
    pace.enter(0.0)
    pace.leave(state(0, limit=5))
    assert entered(pace, 20.0) == 1
    assert entered(pace, 33.1) == 0
    assert entered(pace, 33.2) == 1, "less often than five times in any minute"


def test_an_answer_that_does_not_speak_of_the_limit_opens_the_way_step_by_step() -> None:
    pace = Pace()
    for places in (1, 2, 4, 8):
        assert entered(pace) == places
        pace.leave(unlimited=True)
        for _ in range(places - 1):
            pace.leave()


def test_answers_that_overtake_each_other_do_not_bring_back_what_is_used() -> None:
    pace = Pace()
    for remaining in (5, 3, 4):
        pace.enter(0.0)
        pace.leave(state(remaining))
    assert pace.rate_limit == state(3)


@pytest.mark.parametrize("new", [state(59, reset=6000), state(299, limit=300), state(2)])
def test_another_window_another_limit_and_a_lower_number_replace_the_state(new: RateLimit) -> None:
    pace = Pace()
    pace.enter(0.0)
    pace.leave(state(3))
    pace.enter(0.0)
    pace.leave(new)
    assert pace.rate_limit == new


def test_a_pause_holds_everybody_until_it_ends_and_a_shorter_one_does_not_shorten_it() -> None:
    pace = Pace()
    long, short = (RateLimited("no", code="rate_limit_exceeded", status=429, retry_after=s) for s in (40.0, 10.0))
    for refusal, end in ((long, 40.0), (short, 10.0)):
        pace.enter(0.0)
        pace.leave(state(0), refusal, end)
    assert pace.enter(39.9) == Hold(40.0, long)
    assert pace.enter(40.0) is None


def test_a_call_during_a_pause_longer_than_max_wait_raises_without_sending() -> None:
    clock = Clock()
    shared = core(clock)
    headers = {"retry_after": 100, "x_request_id": "first", **limits(60, 0, 9000)}
    Run(shared.create_pet("Rex", 7, None, "a"), [error(429, "key_banned", **headers)], clock)
    clock.now += 30
    second = Run(shared.create_pet("Ada", 7, None, "b"), [], clock)
    assert second.sent == []
    assert isinstance(second.error, KeyBanned)
    assert (second.error.retry_after, second.error.limit, second.error.request_id) == (70, 60, "first")
    clock.now += 10
    third = Run(shared.create_pet("Ada", 7, None, "b"), [answer(201, REX)], clock)
    assert 60 <= third.waited < 60.01, "exactly max_wait is not longer than max_wait"
    assert third.result is not None


def test_after_a_pause_the_call_that_was_refused_goes_first() -> None:
    clock = Clock()
    shared = core(clock)
    refused, other = (shared.create_pet("Rex", 7, None, key) for key in "ab")
    assert isinstance(next(refused), Send)
    assert isinstance(next(other), Wait), "there is one place, as long as nothing is known"
    assert refused.send(error(429, "rate_limit_exceeded", retry_after=9)) == Wait(9)
    assert next(other) == Wait(9)
    clock.now += 9
    assert isinstance(next(other), Wait)
    assert isinstance(next(refused), Send)


def test_a_call_that_gets_no_turn_for_too_long_times_out() -> None:
    clock = Clock()
    shared = core(clock)
    began = clock()
    shared.pace.enter(clock())
    with pytest.raises(TimedOut):
        for step in shared.create_pet("Rex", 7, None, "a"):
            assert isinstance(step, Wait)
            clock.now += step.seconds
            shared.pace.enter(clock())  # somebody else is always quicker, and nobody is answered
    assert LONGEST_HOLD < clock() - began < LONGEST_HOLD + 1


def test_a_call_that_is_given_up_while_it_is_sent_gives_its_place_back() -> None:
    clock = Clock()
    shared = core(clock)
    given_up = shared.create_pet("Rex", 7, None, "a")
    assert isinstance(next(given_up), Send)
    assert shared.pace.enter(clock()) is not None
    given_up.close()
    assert shared.pace.enter(clock()) is None
