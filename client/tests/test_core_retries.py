"""The rules for retrying and waiting, for one call at a time."""

import logging
import math
import ssl
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from fakes import Client, Outcome, Service, created, error, limits, refusal, response
from petstore_client import (
    ConnectionFailed,
    InvalidRequest,
    KeyBanned,
    PetNotFound,
    PetstoreError,
    RateLimited,
    RequestTimeout,
    ServerError,
    TimedOut,
    Wait,
)
from petstore_client._calls import checked_headers
from petstore_client._messages import Timeouts
from petstore_client._retries import delay_after, retry_after

DATE = datetime(2026, 11, 14, 12, 0, tzinfo=UTC)
DAY = 86_400
CUT, LATE, CLOSED = httpx2.ReadError("cut"), httpx2.ReadTimeout("late"), httpx2.ConnectError("refused")
OUTAGES: list[Outcome] = [CUT, LATE, error(502, "unknown"), error(503, "unavailable"), error(504, "unknown")]


def create(*outcomes: Outcome, **options: Any) -> tuple[Service, Client]:
    """Creates an animal with a service that gives these outcomes. Returns the service and the client."""
    service = Service(*outcomes)
    with Client("sync", service, **options) as client:
        client.create_pet("Rex", 7)
    return service, client


def fail(*outcomes: Outcome, **options: Any) -> tuple[PetstoreError, Service]:
    """Creates an animal in vain. Returns the error and the service."""
    service = Service(*outcomes)
    with Client("sync", service, **options) as client, pytest.raises(PetstoreError) as raised:
        client.create_pet("Rex", 7)
    return raised.value, service


def refused(seconds: float | None) -> RateLimited:
    raised = RateLimited("no", code="rate_limit_exceeded", status=429)
    raised.retry_after = seconds
    return raised


def delays(raised: PetstoreError, numbers: range) -> list[tuple[float, float]]:
    """Returns the shortest and the longest wait after each of several consecutive failures."""
    return [(delay_after(raised, number, 0.0), delay_after(raised, number, 1.0)) for number in numbers]


def test_a_retry_after_of_2_seconds_is_a_wait_of_2_to_2_5_seconds() -> None:
    waits = [delay_after(refused(2.0), 1, thousandth / 1000) for thousandth in range(1001)]
    assert (min(waits), max(waits)) == (2.0, 2.5)


@pytest.mark.parametrize(
    ("asked", "jitter"), [(1, 0.5), (2, 0.5), (5, 0.5), (41, 4.1), (60, 6), (80, 8), (3600, 8), (86400, 8)]
)
def test_the_jitter_is_at_most_half_a_second_or_a_tenth_of_the_retry_after(asked: float, jitter: float) -> None:
    ((shortest, longest),) = delays(refused(asked), range(1, 2))
    assert shortest == asked
    assert longest == pytest.approx(asked + jitter)


def test_the_bound_of_the_jitter_doubles_to_8_seconds_when_refused_again() -> None:
    assert delays(refused(2.0), range(1, 8)) == [(2, 2 + bound) for bound in (0.5, 1, 2, 4, 8, 8, 8)]
    assert delays(refused(60.0), range(1, 4)) == [(60, 60 + bound) for bound in (6, 8, 8)]
    assert delay_after(refused(2.0), 10**6, 1.0) == 10


@pytest.mark.parametrize("raised", [refused(None), TimedOut("late", code="timed_out")])
def test_without_a_retry_after_the_wait_is_half_to_all_of_a_backoff_that_doubles(raised: PetstoreError) -> None:
    assert delays(raised, range(1, 8)) == [(bound / 2, bound) for bound in (0.5, 1, 2, 4, 8, 8, 8)]


@pytest.mark.parametrize("outage", [*OUTAGES, CLOSED, error(408, "request_timeout")])
def test_an_outage_and_a_408_are_retried_with_backoff_until_total_timeout(outage: Outcome) -> None:
    service = Service(created(), *[outage] * 50)
    with Client("sync", service, total_timeout=60) as client:
        client.create_pet("Rex", 7)
        with pytest.raises((ConnectionFailed, TimedOut, ServerError, RequestTimeout)):
            client.create_pet("Ada", 7)
    assert service.waits[1:6] == [0.375, 0.75, 1.5, 3, 6]
    assert 60 - 8 < service.seconds < 60


def test_a_call_succeeds_when_an_outage_ends_after_nine_minutes() -> None:
    service, _ = create(*[error(503, "unavailable")] * 90, created())
    assert 500 < service.seconds < 600


@pytest.mark.parametrize("closed", [CLOSED, httpx2.ConnectTimeout("slow"), httpx2.ProxyError("closed")])
def test_failed_connections_end_after_10_seconds_if_the_service_has_never_responded(closed: Outcome) -> None:
    raised, service = fail(*[closed] * 50)
    assert isinstance(raised, ConnectionFailed | TimedOut)
    assert service.waits == [0.375, 0.75, 1.5, 3]
    timeouts = [request.extensions["timeout"]["connect"] for request in service.requests]
    assert timeouts[0] == 5
    assert timeouts[-1] == pytest.approx(10 - service.seconds), "connecting must not outlast the 10 s"


def test_a_service_that_does_not_respond_in_time_is_not_a_mistyped_host() -> None:
    service, _ = create(*[LATE] * 20, created())
    assert service.seconds > 60


def test_a_500_is_retried_twice() -> None:
    raised, service = fail(*[error(500, "internal_error")] * 5)
    assert isinstance(raised, ServerError)
    assert service.waits == [0.375, 0.75], "half of the jitter of 0.5 s and of 1 s"


def test_an_outage_between_two_500s_does_not_count_as_one() -> None:
    crash, outage = error(500, "internal_error"), error(503, "unavailable")
    assert len(create(crash, outage, outage, crash, created())[0].requests) == 5
    assert len(fail(crash, outage, crash, outage, crash, created())[1].requests) == 5


@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 410, 413, 415, 418, 422, 302, 501, 505])
def test_other_responses_are_not_retried(status: int) -> None:
    raised, service = fail(error(status, "a_code_of_the_future"))
    assert raised.status == status
    assert len(service.requests) == 1


@pytest.mark.parametrize("status", [400, 414, 431, 501, 505])
def test_a_malformed_request_is_not_retried(status: int) -> None:
    raised, service = fail(error(status, "malformed_request"))
    assert type(raised) is InvalidRequest
    assert len(service.requests) == 1


def untrusted() -> httpx2.ConnectError:
    """Returns the exception that httpx2 raises for an invalid certificate. Its cause is further up."""
    try:
        try:
            raise ssl.SSLCertVerificationError("self-signed certificate")
        except ssl.SSLError as problem:
            raise OSError("the handshake failed") from problem
    except OSError as problem:
        failed = httpx2.ConnectError("self-signed certificate")
        failed.__context__ = problem
        return failed


@pytest.mark.parametrize(
    "impossible",
    [
        httpx2.InvalidURL("Invalid port"),
        httpx2.UnsupportedProtocol("ftp"),
        httpx2.LocalProtocolError("illegal header"),
        httpx2.TooManyRedirects("21"),
        UnicodeError("label empty or too long"),
        untrusted(),
    ],
)
def test_a_request_that_can_never_succeed_is_not_retried(impossible: Exception) -> None:
    raised, service = fail(impossible)
    assert type(raised) is ConnectionFailed
    assert raised.__cause__ is impossible
    assert len(service.requests) == 1


def test_a_404_is_not_retried() -> None:
    service = Service(error(404, "pet_not_found"))
    with Client("sync", service) as client, pytest.raises(PetNotFound), pytest.warns(DeprecationWarning):
        client.get_pet(5)
    assert [request.url.path for request in service.requests] == ["/v1/pets/5"]


def test_every_attempt_repeats_the_same_request() -> None:
    service, _ = create(CUT, refusal(3), error(500, "internal_error"), LATE, error(408, "request_timeout"), created())
    keys = {request.headers["Idempotency-Key"] for request in service.requests}
    assert len(service.requests) == 6
    assert len(keys) == 1
    assert {request.content for request in service.requests} == {b'{"name":"Rex","categoryId":7}'}


def test_a_429_is_retried_after_the_retry_after_plus_jitter() -> None:
    service, _ = create(refusal(60), created())
    assert service.waits == [63]


def test_a_503_is_retried_after_the_retry_after_plus_jitter() -> None:
    service, _ = create(error(503, "unavailable", retry_after=2), created())
    assert service.waits == [2.25]


@pytest.mark.parametrize("refused", [refusal(10), error(503, "unavailable", retry_after=10)])
def test_a_wait_that_would_exceed_total_timeout_is_raised_at_once(refused: Outcome) -> None:
    raised, service = fail(refused, total_timeout=10)
    assert isinstance(raised, RateLimited | ServerError)
    assert raised.retry_after == 10, "as the service said"
    assert service.seconds == 0


@pytest.mark.parametrize("code", ["rate_limit_exceeded", "key_banned"])
def test_a_second_wait_that_would_exceed_total_timeout_raises_the_last_error(code: str) -> None:
    raised, service = fail(refusal(60), refusal(58, code=code), total_timeout=120)
    assert isinstance(raised, RateLimited)
    assert raised.code == code
    assert service.waits == [63.0], "120 s leave no room for a second wait"


def test_a_retry_without_a_retry_after_is_bounded_too() -> None:
    raised, service = fail(*[error(503, "unavailable")] * 2, total_timeout=0.5)
    assert isinstance(raised, ServerError)
    assert service.waits == [0.375]


def test_without_total_timeout_a_call_waits_as_long_as_the_service_asks() -> None:
    service, _ = create(refusal(80_000, "day"), created(), total_timeout=None)
    assert service.seconds >= 80_000
    assert [round(request.extensions["timeout"]["read"]) for request in service.requests] == [30, 30]


def test_no_attempt_follows_more_than_23_hours_after_one_that_may_have_added_the_animal() -> None:
    raised, service = fail(*[error(503, "unavailable", retry_after=600)] * 200, total_timeout=None)
    assert isinstance(raised, ServerError)
    assert 23 * 3600 - 608 < service.times[-1] < 23 * 3600


def test_a_wait_for_the_day_limit_that_would_exceed_the_23_hours_is_raised_at_once() -> None:
    raised, service = fail(CUT, refusal(DAY - 60, "day"), total_timeout=None)
    assert isinstance(raised, RateLimited)
    assert service.seconds < 1


def test_a_refused_attempt_adds_nothing_so_the_next_may_follow_more_than_23_hours_later() -> None:
    service, _ = create(refusal(DAY, "day"), created(), total_timeout=None)
    assert service.seconds >= DAY


def test_each_attempt_gets_at_most_the_rest_of_total_timeout() -> None:
    service, _ = create(error(503, "unavailable", retry_after=100), created(), total_timeout=120)
    totals = [request.extensions["timeout"]["read"] for request in service.requests]
    assert totals == [pytest.approx(30, abs=1), pytest.approx(16, abs=1)], "120 s less the wait of 104 s"


def test_an_attempt_that_begins_as_total_timeout_ends_has_a_timeout_above_0() -> None:
    assert Timeouts(30, 5, 30, 30).within(-1) == Timeouts(0.001, 5, 30, 30)
    assert Timeouts(30, 5, 30, 30).within(math.inf, 0.0) == Timeouts(30, 0.001, 30, 30)


@pytest.mark.parametrize("bad", [0, -1, float("nan")])
def test_a_timeout_that_is_not_above_0_is_a_value_error(bad: float) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Timeouts(30, bad, 30, 30)


def test_nothing_is_sent_after_total_timeout_has_passed_in_a_callback() -> None:
    for outcome in (refusal(9), error(503, "unavailable", retry_after=9), error(500, "internal_error")):
        service = Service(outcome)
        with (
            Client("sync", service, on_wait=lambda wait: service.advance(600)) as client,  # noqa: B023  # called now
            pytest.raises((RateLimited, ServerError)),
        ):
            client.create_pet("Rex", 7)
        assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (refusal(41), "waiting 43 s: per-minute rate limit"),
        (refusal(300, "day"), "waiting 304 s: per-day rate limit"),
        (refusal(5, "day"), "waiting 5 s: per-day rate limit"),
        (refusal(60, "ban", "key_banned"), "waiting 63 s: the API key is banned"),
        (refusal(60, "minute", "key_banned"), "waiting 63 s: per-minute rate limit"),
        (refusal(60, "address"), "waiting 63 s: rate limit of this address"),
        (error(429, "rate_limit_exceeded", retry_after=60), "waiting 63 s: rate limit"),
        (error(429, "key_banned", retry_after=60), "waiting 63 s: the API key is banned"),
        (error(503, "unavailable", retry_after=10), "waiting 10 s: the service is unavailable"),
        (error(502, "unknown", retry_after=10), "waiting 10 s: the service is unavailable"),
        (error(408, "request_timeout", retry_after=10), "waiting 10 s: the last attempt failed"),
        (refusal(5), "waiting 5 s: per-minute rate limit"),
        (error(503, "unavailable", retry_after=2), None),
        (refusal(4), None),
    ],
)
def test_a_wait_longer_than_5_seconds_is_one_warning_that_names_its_cause(
    outcome: Outcome, line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    create(outcome, created())
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.levelno > logging.INFO]
    assert lines == [("WARNING", line)] * (line is not None)


def test_a_short_wait_is_reported_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    _, client = create(error(500, "internal_error"), created())
    assert client.waits == [Wait(0.375, "failure", 1)]
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("outcomes", [[created()], [error(500, "internal_error"), created()], [refusal(9), created()]])
def test_an_exception_in_a_callback_is_logged_and_does_not_lose_the_animal(
    outcomes: list[Outcome], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: object) -> None:
        raise ZeroDivisionError("a bug in the caller's program")

    service = Service(*outcomes)
    with Client("sync", service, on_attempt=broken, on_wait=broken) as client:
        assert client.create_pet("Rex", 7).name == "Rex"
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {ZeroDivisionError}


def test_the_wait_grows_each_time_that_a_call_is_refused_again() -> None:
    service, _ = create(*[refusal(2)] * 6, created())
    assert service.waits == [2.25, 2.5, 3, 4, 6, 6]


def test_rate_limited_has_all_values_of_the_response() -> None:
    headers = {**limits(0, reset=1794614400, window="ban"), "X-Request-Id": "r"}
    raised, _ = fail(error(429, "key_banned", headers, retry_after=3600))
    assert isinstance(raised, KeyBanned)
    assert (raised.retry_after, raised.limit, raised.remaining, raised.reset) == (3600, 60, 0, 1794614400)
    assert (raised.code, raised.message, raised.window) == ("key_banned", "It is key_banned.", "ban")
    assert (raised.status, raised.request_id) == (429, "r")


def test_a_429_of_a_proxy_without_body_and_headers_is_rate_limited() -> None:
    raised, service = fail(*[response(429, b"<html>slow down</html>")] * 3, total_timeout=2)
    assert isinstance(raised, RateLimited)
    assert (raised.code, raised.retry_after, raised.limit, raised.window) == ("unknown", None, None, None)
    assert service.waits == [0.375, 0.75]


@pytest.mark.parametrize(("cause", "kind"), [(CUT, ConnectionFailed), (LATE, TimedOut), (TimeoutError(), TimedOut)])
def test_no_response_is_raised_with_its_cause(cause: Exception, kind: type[Exception]) -> None:
    raised, _ = fail(*[cause] * 3, total_timeout=2)
    assert type(raised) is kind
    assert raised.__cause__ is cause
    assert (raised.status, raised.request_id) == (None, None)


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


@pytest.mark.parametrize("bad", [{"total_timeout": 0}, {"total_timeout": float("nan")}])
def test_an_option_out_of_range_is_a_value_error(bad: dict[str, float]) -> None:
    with Client("sync", Service()) as client, pytest.raises(ValueError, match="must be"):
        client.inner.with_options(**bad)  # type: ignore[arg-type]  # the option of the parameter


@pytest.mark.parametrize(
    ("given", "sent"),
    [({}, "handling=strict"), ({"prefer": "handling=lenient, delay=1"}, "handling=strict, handling=lenient, delay=1")],
)
def test_strict_handling_is_the_first_preference(given: dict[str, str], sent: str) -> None:
    service, _ = create(created(), strict=True, default_headers=given)
    assert service.requests[0].headers["prefer"] == sent
    assert "prefer" not in create(created())[0].requests[0].headers


def test_the_headers_of_the_options_are_sent_but_those_of_the_call_go_first() -> None:
    headers = {"Prefer": "error=gone, delay=1", "X-Empty": "", "Content-Type": "text/plain", "Idempotency-Key": "mine"}
    sent = create(created(), default_headers=headers)[0].requests[0].headers
    assert (sent["prefer"], sent["x-empty"]) == ("error=gone, delay=1", "")
    assert sent.get_list("content-type") == ["application/json"]
    assert sent["idempotency-key"] != "mine"


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
