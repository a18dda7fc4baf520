"""Each rule for retrying and waiting, for one call on a fake clock."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from fakes import REX, Clock, Run, error, limits, operations, options_with, response
from petstore_client import (
    ConnectionFailed,
    InvalidRequest,
    KeyBanned,
    PetNotFound,
    PetstoreError,
    RateLimited,
    ServerError,
    TimedOut,
)
from petstore_client._events import Events
from petstore_client._messages import Failure, Response, Timeouts
from petstore_client._operations import checked_headers
from petstore_client._retries import delay_after, retry_after

DATE = datetime(2026, 11, 14, 12, 0, tzinfo=UTC)


def create(*outcomes: Response | Failure, **options: Any) -> tuple[Run, Clock]:
    clock = Clock()
    return Run(operations(clock, options_with(**options)).create_pet("Rex", 7), outcomes, clock), clock


def test_a_request_is_retried_twice_by_default() -> None:
    run, clock = create(*[error(500, "internal_error")] * 3)
    assert len(run.sent) == 3
    assert isinstance(run.error, ServerError)
    assert clock.slept == [0.375, 0.75], "half of the jitter of 0.5 s and of 1 s"


def refusal(retry_after: float | None) -> RateLimited:
    refused = RateLimited("no", code="rate_limit_exceeded", status=429)
    refused.retry_after = retry_after
    return refused


def waits(error: PetstoreError, numbers: range) -> list[tuple[float, float]]:
    """Returns the shortest and the longest wait after each of several consecutive failures."""
    return [(delay_after(error, number, 0.0), delay_after(error, number, 1.0)) for number in numbers]


def test_a_retry_after_of_2_seconds_is_a_wait_of_2_to_2_5_seconds() -> None:
    waits = [delay_after(refusal(2.0), 1, thousandth / 1000) for thousandth in range(1001)]
    assert (min(waits), max(waits)) == (2.0, 2.5)


@pytest.mark.parametrize(
    ("asked", "jitter"), [(1, 0.5), (2, 0.5), (5, 0.5), (41, 4.1), (60, 6), (80, 8), (3600, 8), (86400, 8)]
)
def test_the_jitter_is_at_most_half_a_second_or_a_tenth_of_the_retry_after(asked: float, jitter: float) -> None:
    ((shortest, longest),) = waits(refusal(asked), range(1, 2))
    assert shortest == asked
    assert longest == pytest.approx(asked + jitter)


def test_the_bound_of_the_jitter_doubles_to_8_seconds_when_refused_again() -> None:
    assert waits(refusal(2.0), range(1, 8)) == [(2, 2 + bound) for bound in (0.5, 1, 2, 4, 8, 8, 8)]
    assert waits(refusal(60.0), range(1, 4)) == [(60, 60 + bound) for bound in (6, 8, 8)]
    assert delay_after(refusal(2.0), 10**6, 1.0) == 10


@pytest.mark.parametrize("error", [refusal(None), TimedOut("late", code="timed_out")])
def test_without_a_retry_after_the_wait_is_half_to_all_of_a_backoff_that_doubles(error: PetstoreError) -> None:
    assert waits(error, range(1, 8)) == [(bound / 2, bound) for bound in (0.5, 1, 2, 4, 8, 8, 8)]


def test_a_429_is_retried_after_the_retry_after_plus_jitter() -> None:
    run, clock = create(error(429, "rate_limit_exceeded", retry_after=60), response(201, REX))
    assert run.parsed.name == "Rex"
    assert clock.slept == [63]


def test_a_503_is_retried_after_the_retry_after_plus_jitter() -> None:
    _, clock = create(error(503, "unavailable", retry_after=2), response(201, REX))
    assert clock.slept == [2.25]


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limit_exceeded"), (503, "unavailable")])
def test_a_wait_that_would_exceed_total_timeout_is_raised_at_once(status: int, code: str) -> None:
    run, clock = create(error(status, code, retry_after=10), total_timeout=10)
    assert isinstance(run.error, RateLimited | ServerError)
    assert run.error.retry_after == 10, "as the service said"
    assert clock.slept == []


@pytest.mark.parametrize("code", ["rate_limit_exceeded", "key_banned"])
def test_a_second_wait_that_would_exceed_total_timeout_raises_the_last_error(code: str) -> None:
    run, clock = create(error(429, "rate_limit_exceeded", retry_after=60), error(429, code, retry_after=58))
    assert isinstance(run.error, RateLimited)
    assert run.error.code == code
    assert clock.slept == [63.0], "120 s leave no room for a second wait"


def test_a_retry_without_a_retry_after_is_bounded_too() -> None:
    run, clock = create(*[error(500, "internal_error")] * 2, total_timeout=0.5, max_retries=5)
    assert isinstance(run.error, ServerError)
    assert clock.slept == [0.375]


def test_without_total_timeout_a_call_waits_as_long_as_the_service_asks() -> None:
    refused = error(429, "rate_limit_exceeded", retry_after=80_000)
    run, clock = create(refused, response(201, REX), total_timeout=math.inf)
    assert run.parsed.name == "Rex"
    assert sum(clock.slept) >= 80_000
    assert [request.timeouts.total for _, request in run.sent] == [30, 30]


def test_each_attempt_gets_at_most_the_rest_of_total_timeout() -> None:
    run, _ = create(error(503, "unavailable", retry_after=100), response(201, REX))
    totals = [request.timeouts.total for _, request in run.sent]
    assert totals == [30, 16], "120 s less the wait of 104 s"


def test_an_attempt_that_begins_as_total_timeout_ends_has_a_timeout_above_0() -> None:
    assert Timeouts(30, 5, 30, 30, 30).within(-1).total == 0.001
    assert Timeouts(30, 5, 30, 30, 30).within(math.inf).total == 30


def test_nothing_is_sent_after_total_timeout_has_passed_in_a_callback() -> None:
    clock = Clock()
    events = Events(on_wait=lambda wait: clock.sleep(200))
    for outcome in (error(429, "rate_limit_exceeded", retry_after=9), error(503, "unavailable", retry_after=9)):
        run = Run(operations(clock, events=events).create_pet("Rex", 7), [outcome], clock)
        assert len(run.sent) == 1
        assert isinstance(run.error, RateLimited | ServerError), "the last error"


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (error(429, "rate_limit_exceeded", retry_after=41), "waiting 43 s: per-minute rate limit"),
        (error(429, "rate_limit_exceeded", retry_after=60), "waiting 63 s: per-minute rate limit"),
        (error(429, "rate_limit_exceeded", retry_after=61), "waiting 64 s: per-day rate limit"),
        (error(429, "key_banned", retry_after=60), "waiting 63 s: the API key is banned"),
        (error(503, "unavailable", retry_after=10), "waiting 10 s: the service is unavailable"),
        (error(502, "unknown", retry_after=10), "waiting 10 s: the last attempt failed"),
        (error(429, "rate_limit_exceeded", retry_after=5), "waiting 5 s: per-minute rate limit"),
        (error(503, "unavailable", retry_after=2), None),
        (error(429, "rate_limit_exceeded", retry_after=4), None),
    ],
)
def test_a_wait_longer_than_5_seconds_is_one_warning_that_names_its_cause(
    outcome: Response, line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    run, _ = create(outcome, response(201, REX))
    assert run.result is not None
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", line)] * (
        line is not None
    )


def test_a_long_backoff_after_lost_connections_is_a_warning_too(caplog: pytest.LogCaptureFixture) -> None:
    create(*[Failure(OSError("cut"), "no response")] * 5, response(201, REX), max_retries=5)
    assert [record.getMessage() for record in caplog.records] == ["waiting 6 s: no response from the service"]


def test_the_wait_grows_each_time_that_a_call_is_refused_again() -> None:
    refusals = [error(429, "rate_limit_exceeded", retry_after=2, **limits(60, 0, 5))] * 6
    clock = Clock()
    call = operations(clock, options_with(max_retries=6), random=lambda: 1.0).create_pet("Rex", 7)
    Run(call, [*refusals, response(201, REX)], clock)
    assert clock.slept == [2.5, 3, 4, 6, 10, 10]


def test_rate_limited_has_all_values_of_the_response() -> None:
    headers = {**limits(60, 0, 1794614400), "x_request_id": "r"}
    run, _ = create(error(429, "key_banned", retry_after=3600, **headers))
    raised = run.error
    assert isinstance(raised, KeyBanned)
    assert (raised.retry_after, raised.limit, raised.remaining, raised.reset) == (3600, 60, 0, 1794614400)
    assert (raised.code, raised.message) == ("key_banned", "It is key_banned.")
    assert (raised.status, raised.request_id) == (429, "r")


def test_a_429_of_a_proxy_without_body_and_headers_is_rate_limited() -> None:
    run, clock = create(*[response(429, b"<html>slow down</html>")] * 3)
    assert isinstance(run.error, RateLimited)
    assert (run.error.code, run.error.retry_after, run.error.limit) == ("unknown", None, None)
    assert len(clock.slept) == 2


def test_a_404_is_not_retried() -> None:
    clock = Clock()
    run = Run(operations(clock).fetch_pet(5), [error(404, "pet_not_found")], clock)
    assert isinstance(run.error, PetNotFound)
    assert [request.path for _, request in run.sent] == ["/pets/5"]


@pytest.mark.parametrize("status", [400, 414, 431, 501, 505])
def test_a_malformed_request_is_not_retried(status: int) -> None:
    run, _ = create(error(status, "malformed_request"))
    assert type(run.error) is InvalidRequest
    assert len(run.sent) == 1


@pytest.mark.parametrize(("timed_out", "kind"), [(False, ConnectionFailed), (True, TimedOut)])
def test_no_response_is_retried_and_then_raised_with_its_cause(timed_out: bool, kind: type[Exception]) -> None:
    cause = OSError("cut")
    run, _ = create(*[Failure(cause, "no response", timed_out)] * 3)
    assert type(run.error) is kind
    assert run.error is not None
    assert run.error.__cause__ is cause
    assert (run.error.status, run.error.request_id) == (None, None)
    assert len(run.sent) == 3


def test_max_retries_0_sends_once() -> None:
    run, _ = create(error(500, "internal_error"), max_retries=0)
    assert len(run.sent) == 1


@pytest.mark.parametrize("text", [
    "Sat, 14 Nov 2026 12:01:00 GMT", "Saturday, 14-Nov-26 12:01:00 GMT", "Sat Nov 14 12:01:00 2026",
])  # fmt: skip
def test_every_form_of_an_http_date_is_read_as_utc(text: str) -> None:
    assert retry_after({"retry-after": text}, DATE.timestamp()) == 60


@pytest.mark.parametrize("zone", ["+99999999999999999999", "-9999"])
def test_a_date_in_an_impossible_time_zone_is_ignored(zone: str) -> None:
    assert retry_after({"retry-after": f"Fri, 31 Dec 9999 23:59:59 {zone}"}, DATE.timestamp()) is None


def test_a_date_is_compared_with_the_date_of_the_response_before_the_local_clock() -> None:
    headers = {"retry-after": "Sat, 14 Nov 2026 12:01:00 GMT", "date": "Sat, 14 Nov 2026 12:00:30 GMT"}
    assert retry_after(headers, DATE.timestamp()) == 30
    assert retry_after(headers | {"date": "today"}, DATE.timestamp()) == 60


def test_a_name_that_is_not_valid_unicode_is_not_sent() -> None:
    clock = Clock()
    with pytest.raises(ValueError, match="not valid Unicode"):
        Run(operations(clock).create_pet("Rex \udcff", 7), [], clock)


@pytest.mark.parametrize("bad", ["", "a b", "a\nb", "é", "x" * 256])
def test_an_idempotency_key_that_no_header_can_carry_is_not_sent(bad: str) -> None:
    clock = Clock()
    with pytest.raises(ValueError, match="visible ASCII"):
        Run(operations(clock).create_pet("Rex", 7, idempotency_key=bad), [], clock)


@pytest.mark.parametrize("bad", [{"max_retries": -1}, {"total_timeout": 0}, {"total_timeout": float("nan")}])
def test_an_option_out_of_range_is_a_value_error(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        operations(Clock()).with_options(**bad)


@pytest.mark.parametrize("bad", [0, -1, float("nan")])
def test_a_timeout_that_is_not_above_0_is_a_value_error(bad: float) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Timeouts(30, bad, 30, 30, 30)


def test_the_headers_of_the_options_are_sent_but_those_of_the_call_go_first() -> None:
    clock = Clock()
    headers = checked_headers({"Prefer": "error=gone, delay=1", "X-Empty": "", "Content-Type": "text/plain"})
    run = Run(operations(clock, options_with(headers=headers)).create_pet("Rex", 7), [response(201, REX)], clock)
    assert run.sent[0][1].headers == {
        "prefer": "error=gone, delay=1", "x-empty": "", "content-type": "application/json", "idempotency-key": "random",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "sent"),
    [({}, "handling=strict"), ({"prefer": "handling=lenient, delay=1"}, "handling=strict, handling=lenient, delay=1")],
)
def test_strict_handling_is_the_first_preference(given: dict[str, str], sent: str) -> None:
    run, _ = create(response(201, REX), strict=True, headers=given)
    assert run.sent[0][1].headers["prefer"] == sent
    assert "prefer" not in create(response(201, REX))[0].sent[0][1].headers


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("", "x", "not a valid header name"),
        ("X Team", "x", "not a valid header name"),
        ("X-Team:", "x", "not a valid header name"),
        ("X-Té", "x", "not a valid header name"),
        ("X-Team\n", "x", "not a valid header name"),
        ("AUTHORIZATION", "Bearer secret", "api_key"),
        ("X-Team", "secret\r\nX-Evil: 1", "printable ASCII"),
        ("X-Team", "secreté", "printable ASCII"),
        ("X-Team", " secret", "printable ASCII"),
    ],
)
def test_a_header_that_cannot_be_sent_is_a_value_error_that_does_not_show_its_value(
    name: str, value: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        checked_headers({name: value})
    assert "secret" not in str(raised.value)
