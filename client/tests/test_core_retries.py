"""The rules on retrying, for one call on a fake clock: never early, never too often, never too long."""

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import REX, Clock, Run, answer, core, error
from petstore_client import (
    ApiError,
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


class Scripted(NamedTuple):
    """One outcome of a try, and what the rules say about it, worked out apart from the code."""

    outcome: Answer | Failure
    worth_it: bool
    asked: float | None
    """What a valid Retry-After asks for."""


BROKEN = Scripted(Failure(OSError("cut"), "no answer"), True, None)
LATE = Scripted(Failure(OSError("late"), "no answer in time", timed_out=True), True, None)
DONE = Scripted(answer(201, REX), False, None)

PERMANENT = [(400, "invalid_body"), (401, "unauthorized"), (403, "insufficient_scope"), (404, "not_found"),
             (409, "some_other_conflict"), (410, "gone"), (413, "body_too_large"), (422, "idempotency_mismatch"),
             (418, "a_code_of_the_future"), (302, "moved")]  # fmt: skip
TEMPORARY = [(408, "request_timeout"), (409, "idempotency_conflict"), (429, "rate_limit_exceeded"),
             (429, "key_banned"), (429, "a_code_of_the_future"), (500, "internal_error"), (502, "unknown"),
             (503, "unavailable"), (599, "unknown")]  # fmt: skip


@st.composite
def refusals(draw: st.DrawFn) -> Scripted:
    (status, code), worth_it = draw(
        st.one_of(
            st.tuples(st.sampled_from(TEMPORARY), st.just(True)), st.tuples(st.sampled_from(PERMANENT), st.just(False))
        )
    )
    seconds = draw(st.one_of(st.none(), st.integers(0, 100), st.integers(10**6, 10**30)))
    form = draw(st.sampled_from(["seconds", "date", "garbage"]))
    headers: dict[str, Any] = {}
    asked = None
    if seconds is not None and form == "seconds":
        headers["retry_after"] = f" {seconds:02d} "
        asked = min(float(seconds), 1e9) or None
    elif seconds is not None and form == "date":
        seconds = min(seconds, 10**6)
        headers["retry_after"] = _date(seconds)
        headers["date"] = _date(0)
        asked = float(seconds) or None
    elif seconds is not None:
        headers["retry_after"] = draw(st.sampled_from(["", "soon", "-5", "1.5", "+3", "³", "1e3", "Mon, 99 Foo"]))
    return Scripted(error(status, code, **headers), worth_it, asked)


def _date(seconds: int) -> str:
    return format_datetime(datetime.fromtimestamp(DATE.timestamp() + seconds, UTC), usegmt=True)


scripts = st.lists(st.one_of(refusals(), st.sampled_from([BROKEN, LATE, DONE])), min_size=1, max_size=12)
rules = st.builds(Rules, retries=st.integers(0, 10), max_wait=st.sampled_from([0.0, 0.3, 1.0, 20.0, 60.0, 1e6]))


@settings(deadline=None, max_examples=500)
@given(script=scripts, rules=rules, fraction=st.floats(0, 1), nap=st.sampled_from([0.3, 1.0]), start=st.floats(0, 1e6))
def test_any_sequence_of_answers_is_met_as_the_rules_say(
    script: list[Scripted], rules: Rules, fraction: float, nap: float, start: float
) -> None:
    script = [*script, *[DONE] * 12]
    clock = Clock(start)
    once = core(clock, rules, random=lambda: fraction)
    run = Run(once.create_pet("Rex", 7, None, "key-of-the-test"), [it.outcome for it in script], clock, nap)
    tries = len(run.sent)

    assert tries <= rules.retries + 1, "more tries than allowed"
    assert run.waited <= rules.retries * rules.max_wait + 1e-6, "longer waits than allowed"
    assert {(sent.method, sent.path, sent.body, sent.headers["Idempotency-Key"]) for _, sent in run.sent} == {
        ("POST", "/pets", b'{"name":"Rex","categoryId":7}', "key-of-the-test")
    }, "a retry must be the same request"

    for number, (before, after) in enumerate(zip(run.sent, run.sent[1:], strict=False), start=1):
        it = script[number - 1]  # a fake try takes no time, so it was answered when it was sent
        assert it.worth_it
        passed = after[0] - before[0]
        if it.asked is not None:
            assert it.asked - 1e-9 <= passed <= it.asked + 1e-2, "Retry-After is kept exactly"
            assert after[0] >= before[0] + it.asked, "and never early"
        else:
            most = min(0.5 * 2 ** (number - 1), 8)
            assert most / 2 - 1e-9 <= passed <= most + 1e-2

    last = script[tries - 1]
    if run.error is None:
        assert last is DONE
        return
    assert last is not DONE
    if last.worth_it and tries <= rules.retries:  # gave up with tries left: only because the wait is too long
        most = last.asked if last.asked is not None else min(0.5 * 2 ** (tries - 1), 8) * (1 + fraction) / 2
        assert most > rules.max_wait
    if isinstance(run.error, ApiError):
        assert run.error.retry_after == last.asked


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


def test_a_date_is_compared_with_the_answers_own_clock_before_ours() -> None:
    headers = {"retry-after": "Sat, 14 Nov 2026 12:01:00 GMT", "date": "Sat, 14 Nov 2026 12:00:30 GMT"}
    assert retry_after(headers, DATE.timestamp()) == 30
    assert retry_after(headers | {"date": "today"}, DATE.timestamp()) == 60


@settings(deadline=None)
@given(st.text(), st.text())
def test_no_text_of_a_retry_after_is_more_than_ignored(text: str, date: str) -> None:
    seconds = retry_after({"retry-after": text, "date": date}, 0.0)
    assert seconds is None or 0 < seconds <= 1e9
