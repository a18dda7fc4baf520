"""Each rule of the rate limiter that a client's threads and tasks share."""

import math

import pytest

from fakes import REX, Clock, Run, Sleep, error, limits, operations, options_with, response
from petstore_client import KeyBanned, RateLimit, RateLimited, TimedOut, Wait
from petstore_client._events import Events
from petstore_client._messages import Failure, Request, Response, Timeouts
from petstore_client._rate_limiter import Hold, RateLimiter


def state(remaining: int, limit: int = 60, reset: int = 5000) -> Response:
    return response(200, **limits(limit, remaining, reset))


def refusal(seconds: float) -> RateLimited:
    refused = RateLimited("no", code="rate_limit_exceeded", status=429)
    refused.retry_after = seconds
    return refused


def permits(limiter: RateLimiter, now: float = 0.0, most: int = 1000) -> int:
    """Returns how many requests may start at the same time."""
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


@pytest.mark.parametrize("outcome", [None, response(502), response(401), Failure(OSError(), "no response")])
def test_an_outcome_that_does_not_tell_how_many_remain_changes_nothing(outcome: Response | Failure | None) -> None:
    limiter = RateLimiter()
    limiter.acquire(0.0)
    limiter.release(0.0, outcome)
    assert limiter.acquire(0.0) is None
    assert limiter.acquire(1e9) == Hold(), "one request, until a response allows more"
    limiter.release(0.0, state(7))
    limiter.acquire(0.0)
    limiter.release(0.0, outcome)
    assert permits(limiter) == 7


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
    assert limiter.pause(long, 0.0, 0.0, 0.5) == 42
    assert limiter.pause(refusal(10.0), 0.0, 0.0, 0.5) == 42
    assert limiter.acquire(41.9) == Hold(42, long)
    assert limiter.acquire(42) is None


class Refusals:
    """Refuses or admits a request long after the last one. `refuse` returns the upper bound of the jitter."""

    def __init__(self) -> None:
        self.limiter = RateLimiter()
        self.now = 0.0

    def refuse(self) -> float:
        self.now += 1000
        return self.limiter.pause(refusal(2.0), self.now, self.now, 1.0) - self.now - 2

    def admit(self) -> None:
        self.now += 1000
        self.limiter.acquire(self.now)
        self.limiter.release(self.now, state(5))


def test_the_jitter_grows_when_the_client_is_refused_again_and_is_reset_by_a_success() -> None:
    refusals = Refusals()
    assert [refusals.refuse() for _ in range(3)] == [0.5, 1, 2]
    refusals.admit()
    assert [refusals.refuse() for _ in range(2)] == [0.5, 1]


def test_requests_that_are_refused_together_are_one_refusal() -> None:
    refusals = Refusals()
    assert refusals.refuse() == 0.5
    refusals.limiter.acquire(refusals.now + 1000)
    refusals.limiter.release(refusals.now, state(5))  # sent before the pause, so its success does not count
    for _ in range(5):
        refusals.limiter.pause(refusal(2.0), refusals.now, refusals.now, 1.0)
    assert refusals.refuse() == 1


def test_a_call_during_a_pause_that_exceeds_total_timeout_raises_without_sending() -> None:
    clock = Clock()
    shared = operations(clock, options_with(total_timeout=90.0))
    headers = {"retry_after": 100, "x_request_id": "first", **limits(60, 0, 9000)}
    Run(shared.create_pet("Rex", 7), [error(429, "key_banned", **headers)], clock)
    clock.now += 10
    second = Run(shared.create_pet("Ada", 7), [], clock)
    assert second.sent == []
    assert isinstance(second.error, KeyBanned)
    assert second.error.retry_after is not None
    assert second.error.retry_after == 94, "the rest of the pause, with its jitter of 4 of at most 8 s"
    assert (second.error.limit, second.error.request_id) == (60, "first")
    clock.now += 4
    third = Run(shared.create_pet("Ada", 7), [], clock)
    assert isinstance(third.error, KeyBanned), "a pause that ends with total_timeout leaves no time to send"
    clock.now += 0.5
    fourth = Run(shared.create_pet("Ada", 7), [response(201, REX)], clock)
    assert fourth.waited == pytest.approx(89.5, abs=0.01)
    assert fourth.result is not None


def test_other_options_of_a_call_share_the_pause() -> None:
    clock = Clock()
    shared = operations(clock)
    Run(shared.create_pet("Rex", 7), [error(429, "rate_limit_exceeded", retry_after=200)], clock)
    patient = Run(shared.with_options(total_timeout=math.inf).create_pet("Ada", 7), [response(201, REX)], clock)
    assert patient.waited >= 200
    impatient = Run(shared.with_options(max_retries=0).create_pet("Ada", 7), [error(500, "internal_error")], clock)
    assert len(impatient.sent) == 1


def test_the_refused_call_is_sent_first_after_the_pause() -> None:
    clock = Clock()
    shared = operations(clock)
    refused, other = (shared.create_pet("Rex", 7) for _ in range(2))
    assert isinstance(refused.send(None), Request)
    assert isinstance(other.send(None), Sleep), "there is one permit until a response allows more"
    step = refused.send(error(429, "rate_limit_exceeded", retry_after=9))
    assert isinstance(step, Sleep)
    assert other.send(None) == step, "both wait for the same pause"
    clock.now += step.seconds
    assert isinstance(other.send(None), Sleep)
    assert isinstance(refused.send(None), Request)
    refused.close()
    other.close()


@pytest.mark.parametrize(("total", "pool"), [(30.0, 30.0), (math.inf, 30.0), (30.0, 60.0)])
def test_a_call_that_gets_no_permit_within_its_timeout_is_timed_out(total: float, pool: float) -> None:
    clock = Clock()
    shared = operations(clock, options_with(timeouts=Timeouts(total, 5.0, 60.0, 60.0, pool)))
    began = clock()
    shared.limiter.acquire(clock())  # a request that gets no response
    run = Run(shared.create_pet("Rex", 7), [], clock)
    assert isinstance(run.error, TimedOut)
    assert run.sent == []
    assert 30 < clock() - began < 31


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
    shared = operations(clock, events=Events(on_wait=waits.append))
    refused, other = shared.create_pet("Rex", 7), shared.list_pets(page_size=5)
    refused.send(None)
    refused.send(error(429, "rate_limit_exceeded", retry_after=41))
    other.send(None)
    assert [(wait.method, wait.path, wait.reason) for wait in waits] == [
        ("POST", "/pets", "minute_limit"),
        ("GET", "/pets?limit=5", "minute_limit"),
    ]
    assert [wait.seconds for wait in waits] == [pytest.approx(43.05)] * 2
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [("WARNING", "waiting 43 s: per-minute rate limit")]
    refused.close()
    other.close()


def test_a_short_wait_is_reported_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    waits: list[Wait] = []
    clock = Clock()
    call = operations(clock, events=Events(on_wait=waits.append)).fetch_pet(1)
    Run(call, [error(500, "internal_error"), response(200, REX)], clock)
    assert waits == [Wait("GET", "/pets/1", 0.375, "failure")]
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == []
