"""The rules on retrying and waiting, one by one, for one call on a fake clock."""

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from fakes import REX, Clock, Run, error, limits, operations, response
from petstore_client import (
    ConnectionFailed,
    IdempotencyConflict,
    InvalidRequest,
    KeyBanned,
    PetNotFound,
    RateLimited,
    ServerError,
    TimedOut,
)
from petstore_client._messages import Failure, Response
from petstore_client._operations import Options
from petstore_client._retries import SLOT, SLOTS, backoff, delay_after, next_slot, retry_after, slot_of

DATE = datetime(2026, 11, 14, 12, 0, tzinfo=UTC)


def create(*outcomes: Response | Failure, **options: Any) -> tuple[Run, Clock]:
    clock = Clock()
    return Run(operations(clock, Options(**options)).create_pet("Rex", 7), outcomes, clock), clock


def test_a_request_is_retried_twice_by_default() -> None:
    run, clock = create(*[error(500, "internal_error")] * 3)
    assert len(run.sent) == 3
    assert isinstance(run.error, ServerError)
    assert clock.slept == [0.375, 0.75], "half of the jitter of 0.5 s and of 1 s"


def test_backoff_doubles_from_half_a_second_to_8_seconds_and_jitter_takes_up_to_half() -> None:
    assert [backoff(number, 1.0) for number in range(1, 8)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert [backoff(number, 0.0) for number in range(1, 8)] == [0.25, 0.5, 1, 2, 4, 4, 4]
    assert backoff(10**6, 1.0) == 8


def test_the_delay_is_the_retry_after_plus_the_backoff() -> None:
    refusal = RateLimited("no", code="rate_limit_exceeded", status=429)
    assert delay_after(refusal, 1, 1.0) == 0.5
    refusal.retry_after = 41.0
    assert [delay_after(refusal, number, 1.0) for number in (1, 2, 3)] == [41.5, 42, 43]
    assert delay_after(TimedOut("late", code="timed_out"), 1, 1.0) == 0.5


def test_a_429_is_retried_after_the_retry_after_plus_jitter() -> None:
    run, clock = create(error(429, "rate_limit_exceeded", retry_after=60), response(201, REX))
    assert run.parsed.name == "Rex"
    (slept,) = clock.slept
    assert 60.25 <= slept <= 60.5 + SLOT * SLOTS


def test_a_503_is_retried_after_the_retry_after_plus_jitter() -> None:
    _, clock = create(error(503, "unavailable", retry_after=2), response(201, REX))
    assert clock.slept == [2.375]


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limit_exceeded"), (503, "unavailable")])
def test_a_wait_longer_than_max_wait_is_raised_at_once(status: int, code: str) -> None:
    run, clock = create(error(status, code, retry_after=10), max_wait=10)
    assert isinstance(run.error, RateLimited | ServerError)
    assert run.error.retry_after == 10, "as the service said"
    assert clock.slept == []


def test_the_wait_grows_each_time_that_a_call_is_refused_again() -> None:
    refusals = [error(429, "rate_limit_exceeded", retry_after=9, **limits(60, 0, 5))] * 6
    clock = Clock()
    call = operations(clock, Options(max_retries=6), random=lambda: 0.999).create_pet("Rex", 7)
    run = Run(call, [*refusals, response(201, REX)], clock)
    sent = [moment for moment, _ in run.sent]
    waits = [after - before for before, after in itertools.pairwise(sent)]
    assert len(waits) == 6
    for number, wait in enumerate(waits, start=1):
        longest = 9 + min(0.5 * 2 ** (number - 1), 8)
        assert longest * 0.99 <= wait <= longest + SLOT * SLOTS


@pytest.mark.parametrize("earliest", [0.0, 0.01, 4.999, 5.0, 123456.789, 1e9])
@pytest.mark.parametrize("slot", [0, 1, SLOTS - 1])
@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.999])
def test_a_pause_ends_in_the_time_slot_of_the_client_and_not_early(earliest: float, slot: int, fraction: float) -> None:
    moment = next_slot(earliest, slot, fraction)
    assert earliest <= moment <= earliest + SLOT * SLOTS
    position = (moment + 1e-6) % (SLOT * SLOTS)
    assert slot * SLOT <= position <= slot * SLOT + 0.05 + 1e-5


def test_points_in_two_time_slots_are_at_least_0_15_seconds_apart() -> None:
    moments = sorted(
        next_slot(1000.0, slot, fraction) for slot in range(SLOTS) for fraction in (0.0, 1.0)
    )  # both ends of each slot
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert all(gap > 0.149 or abs(gap - 0.05) < 1e-6 for gap in gaps), "0.05 s lie between the ends of one slot"


def test_neighbouring_processes_and_clients_of_one_process_have_different_time_slots() -> None:
    assert len({slot_of(process, 0) for process in range(4000, 4000 + SLOTS)}) == SLOTS
    assert len({slot_of(4000, client) for client in range(SLOTS)}) == SLOTS
    slots = sorted(slot_of(process, 0) for process in range(4000, 4004))
    assert min(after - before for before, after in itertools.pairwise(slots)) == 3


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


def test_409_is_retried_while_the_first_request_runs_and_then_raised() -> None:
    run, _ = create(*[error(409, "idempotency_conflict")] * 3)
    assert isinstance(run.error, IdempotencyConflict)
    assert len(run.sent) == 3


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


@pytest.mark.parametrize("bad", [{"max_retries": -1}, {"max_wait": -1}, {"timeout": 0}, {"max_wait": float("nan")}])
def test_an_option_out_of_range_is_a_value_error(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        operations(Clock()).with_options(**bad)
