"""The rules on retrying, one by one, for one call on a fake clock."""

from datetime import UTC, datetime
from typing import Any

import pytest

from fakes import REX, Clock, Run, answer, core, error
from petstore_client import (
    ConnectionFailed,
    IdempotencyConflict,
    KeyBanned,
    PetNotFound,
    RateLimited,
    ServerError,
    TimedOut,
)
from petstore_client._core import Rules
from petstore_client._retry import backoff, retry_after
from petstore_client._steps import Answer, Failure

DATE = datetime(2026, 11, 14, 12, 0, tzinfo=UTC)


def create(*outcomes: Answer | Failure, **rules: Any) -> tuple[Run, Clock]:
    clock = Clock()
    return Run(core(clock, Rules(**rules)).create_pet("Rex", 7, None, "k"), outcomes, clock), clock


def test_two_retries_by_default() -> None:
    run, clock = create(*[error(500, "internal_error")] * 3)
    assert len(run.sent) == 3
    assert isinstance(run.error, ServerError)
    assert clock.slept == [0.375, 0.75], "0.5 s and 1 s, at the middle of their jitter"


def test_backoff_doubles_from_half_a_second_to_eight_and_jitter_takes_up_to_half() -> None:
    assert [backoff(number, 1.0) for number in range(1, 8)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert [backoff(number, 0.0) for number in range(1, 8)] == [0.25, 0.5, 1, 2, 4, 4, 4]
    assert backoff(10**6, 1.0) == 8


@pytest.mark.parametrize(("seconds", "waits"), [(60, [60]), (61, [])], ids=["up to max_wait", "beyond it"])
def test_a_retry_after_is_waited_for_exactly_up_to_max_wait_and_raised_at_once_beyond(
    seconds: int, waits: list[float]
) -> None:
    run, clock = create(error(429, "rate_limit_exceeded", retry_after=seconds), answer(201, REX))
    assert clock.slept == waits
    if waits:
        assert run.result.name == "Rex"
    else:
        assert isinstance(run.error, RateLimited)
        assert run.error.retry_after == seconds


def test_rate_limited_says_all_that_is_known() -> None:
    headers = {
        "x_ratelimit_limit": 60,
        "x_ratelimit_remaining": 0,
        "x_ratelimit_reset": 1794614400,
        "x_request_id": "r",
    }
    run, _ = create(error(429, "key_banned", retry_after=3600, **headers))
    raised = run.error
    assert isinstance(raised, KeyBanned)
    assert (raised.retry_after, raised.limit, raised.remaining, raised.reset) == (3600, 60, 0, 1794614400)
    assert (raised.code, raised.message, raised.status, raised.request_id) == (
        "key_banned",
        "It is key_banned.",
        429,
        "r",
    )


def test_a_429_of_a_proxy_without_body_and_headers_is_rate_limited_after_backing_off() -> None:
    run, clock = create(*[answer(429, b"<html>slow down</html>")] * 3)
    assert isinstance(run.error, RateLimited)
    assert (run.error.code, run.error.retry_after, run.error.limit) == ("unknown", None, None)
    assert clock.slept == [0.375, 0.75]


def test_a_503_beyond_max_wait_is_raised_at_once_and_says_how_long() -> None:
    run, clock = create(error(503, "unavailable", retry_after=600))
    assert isinstance(run.error, ServerError)
    assert (run.error.retry_after, clock.slept) == (600, [])


def test_409_is_retried_while_the_first_request_runs_and_then_raised() -> None:
    run, _ = create(*[error(409, "idempotency_conflict")] * 3)
    assert isinstance(run.error, IdempotencyConflict)
    assert len(run.sent) == 3


def test_a_404_is_not_retried() -> None:
    clock = Clock()
    run = Run(core(clock).get_pet(5), [error(404, "pet_not_found")], clock)
    assert isinstance(run.error, PetNotFound)
    assert [sent.path for _, sent in run.sent] == ["/pets/5"]


@pytest.mark.parametrize(("timed_out", "kind"), [(False, ConnectionFailed), (True, TimedOut)])
def test_no_answer_is_retried_and_then_raised_with_its_cause(timed_out: bool, kind: type[Exception]) -> None:
    cause = OSError("cut")
    run, _ = create(*[Failure(cause, "no answer", timed_out)] * 3)
    assert type(run.error) is kind
    assert run.error is not None
    assert run.error.__cause__ is cause
    assert (run.error.status, run.error.request_id) == (None, None)
    assert len(run.sent) == 3


def test_retries_0_sends_once() -> None:
    run, _ = create(error(500, "internal_error"), retries=0)
    assert len(run.sent) == 1


@pytest.mark.parametrize("text", [
    "Sat, 14 Nov 2026 12:01:00 GMT", "Saturday, 14-Nov-26 12:01:00 GMT", "Sat Nov 14 12:01:00 2026",
])  # fmt: skip
def test_every_form_of_an_http_date_is_read_as_utc(text: str) -> None:
    assert retry_after({"retry-after": text}, DATE.timestamp()) == 60


@pytest.mark.parametrize("zone", ["+99999999999999999999", "-9999"])
def test_a_date_in_no_zone_of_this_world_is_none(zone: str) -> None:
    assert retry_after({"retry-after": f"Fri, 31 Dec 9999 23:59:59 {zone}"}, DATE.timestamp()) is None


def test_a_date_is_compared_with_the_answers_own_clock_before_ours() -> None:
    headers = {"retry-after": "Sat, 14 Nov 2026 12:01:00 GMT", "date": "Sat, 14 Nov 2026 12:00:30 GMT"}
    assert retry_after(headers, DATE.timestamp()) == 30
    assert retry_after(headers | {"date": "today"}, DATE.timestamp()) == 60


def test_a_name_that_is_not_unicode_is_never_sent() -> None:
    clock = Clock()
    with pytest.raises(ValueError, match="not Unicode"):
        Run(core(clock).create_pet("Rex \udcff", 7, None, "key"), [], clock)
