"""The rate limiter that the threads and tasks of a client share, rule by rule."""

import itertools

import pytest

from fakes import REX, Clock, Run, Sleep, error, limits, operations, response
from petstore_client import KeyBanned, RateLimit, RateLimited, TimedOut, Wait
from petstore_client._events import Events
from petstore_client._messages import Failure, Request, Response
from petstore_client._operations import PERMIT_TIMEOUT, Options
from petstore_client._rate_limiter import Hold, RateLimiter
from petstore_client._retries import SLOT, SLOTS


def state(remaining: int, limit: int = 60, reset: int = 5000) -> Response:
    return response(200, **limits(limit, remaining, reset))


def refusal(seconds: float) -> RateLimited:
    refused = RateLimited("no", code="rate_limit_exceeded", status=429)
    refused.retry_after = seconds
    return refused


def permits(limiter: RateLimiter, now: float = 0.0, most: int = 1000) -> int:
    """How many requests may start at once."""
    return next(count for count in range(most + 1) if count == most or limiter.acquire(now) is not None)


def test_one_request_is_sent_first_and_the_others_wait_for_its_response() -> None:
    limiter = RateLimiter()
    assert limiter.acquire(0.0) is None
    assert limiter.acquire(0.0) == Hold()
    limiter.release(0.0, state(59))
    assert permits(limiter) == 59


@pytest.mark.parametrize(("remaining", "expected"), [(0, 1), (1, 1), (7, 7)])
def test_no_more_requests_are_in_flight_than_the_last_response_said_remain(remaining: int, expected: int) -> None:
    limiter = RateLimiter()
    limiter.acquire(0.0)
    limiter.release(0.0, state(remaining))
    assert permits(limiter) == expected


def starts_in_silence(limiter: RateLimiter, since: float, until: float) -> list[float]:
    """When requests start that ask for a permit every tenth of a second, and get no response."""
    moments = [since + tenth / 10 for tenth in range(round(10 * (until - since)))]
    return [moment - since for moment in moments if limiter.acquire(moment) is None]


def test_without_a_response_one_more_request_may_start_after_a_time_that_doubles() -> None:
    assert starts_in_silence(RateLimiter(), 0.0, 100.0) == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0]


def test_in_a_day_without_a_response_few_requests_start() -> None:
    limiter = RateLimiter()
    assert sum(1 for second in range(86_400) if limiter.acquire(float(second)) is None) <= 17


def test_a_response_ends_the_doubling() -> None:
    limiter = RateLimiter()
    assert len(starts_in_silence(limiter, 0.0, 20.0)) == 5
    limiter.release(15.0, state(0))
    assert permits(limiter, 20.0) == 1, "one second counts again"


def test_a_failure_does_not_end_the_doubling() -> None:
    limiter = RateLimiter()
    assert len(starts_in_silence(limiter, 0.0, 20.0)) == 5
    limiter.release(15.0, Failure(OSError(), "no response"))
    assert permits(limiter, 20.0) == 0
    assert permits(limiter, 31.0) == 1


def test_the_time_without_a_response_is_longer_for_a_low_limit() -> None:
    limiter = RateLimiter()
    limiter.acquire(0.0)
    limiter.release(0.0, state(0, limit=5))
    assert permits(limiter, 20.0) == 1
    assert permits(limiter, 33.1) == 0
    assert permits(limiter, 33.2) == 1, "less often than five times a minute"
    assert permits(limiter, 59.5) == 0


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 60, 300])
@pytest.mark.parametrize("shown", ["the minute's limit", "the day's limit"])
def test_in_silence_fewer_requests_start_in_a_minute_than_a_ban_takes(limit: int, shown: str) -> None:
    """More than `limit` refusals in a row are a ban."""
    limiter = RateLimiter()
    for response_ in [state(0, limit), *([state(0, 100_000)] if shown == "the day's limit" else [])]:
        limiter.acquire(0.0)
        limiter.release(0.0, response_)
    assert 1 <= len(starts_in_silence(limiter, 0.0, 60.0)) <= limit


@pytest.mark.parametrize("outcome", [response(200), Failure(OSError(), "no connection", unsent=True)])
def test_the_permits_double_with_each_outcome_that_met_no_rate_limit(outcome: Response | Failure) -> None:
    limiter = RateLimiter()
    for expected in (1, 2, 4, 8):
        assert permits(limiter) == expected
        limiter.release(0.0, outcome)
        for _ in range(expected - 1):
            limiter.release(0.0)


def test_a_request_whose_fate_is_unknown_does_not_change_the_permits() -> None:
    limiter = RateLimiter()
    limiter.acquire(0.0)
    limiter.release(0.0, Failure(OSError(), "the connection broke"))
    assert permits(limiter) == 1


def test_an_older_response_that_arrives_later_does_not_raise_the_remaining_requests() -> None:
    limiter = RateLimiter()
    for remaining in (5, 3, 4):
        limiter.acquire(0.0)
        limiter.release(0.0, state(remaining))
    assert limiter.rate_limit == RateLimit(60, 3, 5000)


@pytest.mark.parametrize("new", [(60, 59, 6000), (300, 299, 5000), (60, 2, 5000)])
def test_another_window_another_limit_and_a_lower_number_replace_the_state(new: tuple[int, int, int]) -> None:
    limiter = RateLimiter()
    for limit, remaining, reset in ((60, 3, 5000), new):
        limiter.acquire(0.0)
        limiter.release(0.0, state(remaining, limit, reset))
    assert limiter.rate_limit == RateLimit(*new)


def test_a_pause_holds_all_calls_and_a_shorter_pause_does_not_shorten_it() -> None:
    limiter = RateLimiter()
    long = refusal(40.0)
    end = limiter.pause(long, 0.0, 0.0)
    assert 40.25 <= end <= 40.25 + SLOT * SLOTS
    assert limiter.pause(refusal(10.0), 0.0, 0.0) == end
    assert limiter.acquire(end - 0.1) == Hold(end, long)
    assert limiter.acquire(end) is None


class Refusals:
    """Refuses a request now and then, long after each pause, and tells whether the backoff has grown."""

    def __init__(self) -> None:
        self.limiter = RateLimiter(slot=0)
        self.now = 0.0

    def has_grown(self) -> bool:
        # Pauses of slot 0 end at multiples of 5 s. 9 s after this moment, only the first backoff of 0.5 s still ends
        # before such a multiple.
        self.now += 1000
        started = self.now + 190.25
        end = self.limiter.pause(refusal(9.0), started, started, (1.0, 0.0))
        assert end - self.now in (200, 205)
        return end - self.now == 205

    def admit(self) -> None:
        self.now += 1000
        self.limiter.acquire(self.now)
        self.limiter.release(self.now, state(5))


def test_the_backoff_grows_when_the_client_is_refused_again_and_starts_anew_after_a_success() -> None:
    refusals = Refusals()
    assert [refusals.has_grown() for _ in range(3)] == [False, True, True]
    refusals.admit()
    assert [refusals.has_grown() for _ in range(2)] == [False, True]


def test_requests_that_are_refused_together_are_one_refusal() -> None:
    refusals = Refusals()
    assert not refusals.has_grown()
    started = refusals.now + 190.25
    refusals.limiter.acquire(started)
    refusals.limiter.release(started, state(5))  # sent before the pause: its success says nothing about later requests
    for _ in range(5):
        refusals.limiter.pause(refusal(9.0), started, started)
    assert refusals.has_grown()


def test_clients_with_different_time_slots_return_at_different_times() -> None:
    ends = sorted(RateLimiter(slot).pause(refusal(41.0), 0.0, 0.0, (0.5, 0.5)) for slot in range(SLOTS))
    assert all(after - before >= SLOT - 1e-9 for before, after in itertools.pairwise(ends))


def test_a_call_during_a_pause_longer_than_max_wait_raises_without_sending() -> None:
    clock = Clock()
    shared = operations(clock)
    headers = {"retry_after": 100, "x_request_id": "first", **limits(60, 0, 9000)}
    Run(shared.create_pet("Rex", 7), [error(429, "key_banned", **headers)], clock)
    clock.now += 10
    second = Run(shared.create_pet("Ada", 7), [], clock)
    assert second.sent == []
    assert isinstance(second.error, KeyBanned)
    assert second.error.retry_after is not None
    assert 90 < second.error.retry_after <= 90.5 + SLOT * SLOTS
    assert (second.error.limit, second.error.request_id) == (60, "first")
    clock.now += second.error.retry_after - 90
    third = Run(shared.create_pet("Ada", 7), [response(201, REX)], clock)
    assert third.waited == pytest.approx(90, abs=0.01), "exactly max_wait is not longer than max_wait"
    assert third.result is not None


def test_other_options_of_a_call_share_the_pause() -> None:
    clock = Clock()
    shared = operations(clock)
    Run(shared.create_pet("Rex", 7), [error(429, "rate_limit_exceeded", retry_after=100)], clock)
    patient = Run(shared.with_options(max_wait=200).create_pet("Ada", 7), [response(201, REX)], clock)
    assert patient.waited >= 100
    impatient = Run(shared.with_options(max_retries=0).create_pet("Ada", 7), [error(500, "internal_error")], clock)
    assert len(impatient.sent) == 1


def test_the_refused_call_is_sent_first_after_the_pause() -> None:
    clock = Clock()
    shared = operations(clock)
    refused, other = (shared.create_pet("Rex", 7) for _ in range(2))
    assert isinstance(refused.send(None), Request)
    assert isinstance(other.send(None), Sleep), "there is one permit while nothing is known"
    step = refused.send(error(429, "rate_limit_exceeded", retry_after=9))
    assert isinstance(step, Sleep)
    assert other.send(None) == step, "both wait for the same pause"
    clock.now += step.seconds
    assert isinstance(other.send(None), Sleep)
    assert isinstance(refused.send(None), Request)
    refused.close()
    other.close()


def test_a_call_that_gets_no_permit_for_too_long_times_out() -> None:
    clock = Clock()
    shared = operations(clock)
    began = clock()
    shared.limiter.acquire(clock())
    call = shared.create_pet("Rex", 7)
    with pytest.raises(TimedOut):
        while True:
            step = call.send(None)
            assert isinstance(step, Sleep)
            clock.now += step.seconds
            shared.limiter.acquire(clock())  # another call always takes the permit first, and gets no response
    assert PERMIT_TIMEOUT < clock() - began < PERMIT_TIMEOUT + 1


def test_a_call_that_is_cancelled_while_it_is_sent_gives_its_permit_back() -> None:
    clock = Clock()
    shared = operations(clock)
    cancelled = shared.create_pet("Rex", 7)
    assert isinstance(cancelled.send(None), Request)
    assert shared.limiter.acquire(clock()) is not None
    cancelled.close()
    assert shared.limiter.acquire(clock()) is None


def test_every_wait_is_reported_and_each_pause_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    waits: list[Wait] = []
    clock = Clock()
    shared = operations(clock, Options(), Events(on_wait=waits.append))
    refused, other = shared.create_pet("Rex", 7), shared.list_pets(limit=5)
    refused.send(None)
    refused.send(error(429, "rate_limit_exceeded", retry_after=41))
    other.send(None)
    assert [(wait.method, wait.path, wait.reason) for wait in waits] == [
        ("POST", "/pets", "rate_limit"),
        ("GET", "/pets?limit=5", "rate_limit"),
    ]
    assert all(41.25 <= wait.seconds <= 41.5 + SLOT * SLOTS for wait in waits)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [("WARNING", f"waiting {waits[0].seconds:.0f} s for the rate limit")]
    refused.close()
    other.close()


def test_the_delay_after_a_failure_is_reported_and_not_logged_as_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    waits: list[Wait] = []
    clock = Clock()
    call = operations(clock, events=Events(on_wait=waits.append)).fetch_pet(1)
    Run(call, [error(500, "internal_error"), response(200, REX)], clock)
    assert waits == [Wait("GET", "/pets/1", 0.375, "retry")]
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == []
