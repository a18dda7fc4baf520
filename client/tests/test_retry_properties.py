"""After random sequences of responses, the client never retries too early, too often or for too long."""

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import ValidationError

from fakes import REX, Clock, Run, error, operations, options_with, response
from petstore_client import ApiError
from petstore_client._messages import Failure, Response
from petstore_client._operations import Options
from petstore_client._responses import next_cursor
from petstore_client._retries import retry_after

DATE = datetime(2026, 11, 14, 12, 0, tzinfo=UTC)


class Scripted(NamedTuple):
    """One outcome of an attempt, and what the rules say about it, determined without the client's code."""

    outcome: Response | Failure
    is_retryable: bool
    asked: float | None
    """The seconds in a valid Retry-After."""
    is_refusal: bool = False


BROKEN = Scripted(Failure(OSError("cut"), "no response"), True, None)
LATE = Scripted(Failure(OSError("late"), "no response in time", timed_out=True), True, None)
DONE = Scripted(response(201, REX), False, None)

PERMANENT = [(400, "invalid_body"), (401, "unauthorized"), (403, "insufficient_scope"), (404, "not_found"),
             (409, "a_code_of_the_future"), (410, "gone"), (413, "body_too_large"), (422, "idempotency_mismatch"),
             (418, "a_code_of_the_future"), (302, "moved"), (505, "malformed_request")]  # fmt: skip
TEMPORARY = [(408, "request_timeout"), (429, "rate_limit_exceeded"), (429, "key_banned"),
             (429, "a_code_of_the_future"), (500, "internal_error"), (502, "unknown"),
             (503, "unavailable"), (599, "unknown")]  # fmt: skip


@st.composite
def errors(draw: st.DrawFn) -> Scripted:
    (status, code), is_retryable = draw(
        st.one_of(
            st.tuples(st.sampled_from(TEMPORARY), st.just(True)), st.tuples(st.sampled_from(PERMANENT), st.just(False))
        )
    )
    seconds = draw(st.one_of(st.none(), st.integers(0, 100), st.integers(10**6, 10**30)))
    form = draw(st.sampled_from(["seconds", "date", "malformed"]))
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
    return Scripted(error(status, code, **headers), is_retryable, asked, status == 429)


def _date(seconds: int) -> str:
    return format_datetime(datetime.fromtimestamp(DATE.timestamp() + seconds, UTC), usegmt=True)


scripts = st.lists(st.one_of(errors(), st.sampled_from([BROKEN, LATE, DONE])), min_size=1, max_size=12)
all_options = st.builds(
    options_with, max_retries=st.integers(0, 10), total_timeout=st.sampled_from([0.1, 0.3, 1.0, 20.0, 120.0, 1e6])
)


@settings(deadline=None, max_examples=80)
@given(
    script=scripts, options=all_options, fraction=st.floats(0, 1), part=st.sampled_from([0.3, 1.0]),
    start=st.floats(0, 1e6),
)  # fmt: skip
def test_every_sequence_of_responses_is_retried_by_the_rules(
    script: list[Scripted], options: Options, fraction: float, part: float, start: float
) -> None:
    script = [*script, *[DONE] * 12]
    clock = Clock(start)
    call = operations(clock, options, random=lambda: fraction).create_pet("Rex", 7, idempotency_key="the-key")
    run = Run(call, [scripted.outcome for scripted in script], clock, part)
    attempts = len(run.sent)

    assert attempts <= options.max_retries + 1, "more attempts than allowed"
    assert clock() - start < options.total_timeout, "longer than allowed"
    assert {
        (request.method, request.path, request.body, request.headers["idempotency-key"]) for _, request in run.sent
    } == {("POST", "/pets", b'{"name":"Rex","categoryId":7}', "the-key")}, "a retry must be the same request"

    refusals = 0
    for number, (before, after) in enumerate(zip(run.sent, run.sent[1:], strict=False), start=1):
        scripted = script[number - 1]
        assert scripted.is_retryable
        if scripted.is_refusal:
            refusals += 1
        elif isinstance(scripted.outcome, Response):
            refusals = 0
        asked = scripted.asked or 0.0
        jitter = min(max(0.5, asked / 10) * 2 ** ((refusals if scripted.is_refusal else number) - 1), 8)
        passed = after[0] - before[0]  # the wait, because a fake attempt takes no time
        assert (asked or jitter / 2) - 1e-6 <= passed, "before the Retry-After or half of the backoff had passed"
        assert passed <= asked + jitter + 1e-2, "too late"

    last = script[attempts - 1]
    if run.error is None:
        assert last is DONE
        return
    assert last is not DONE
    if last.is_retryable and attempts <= options.max_retries:  # the next wait must have been too long
        assert clock() - start + (last.asked or 0.0) + 8 >= options.total_timeout
    if isinstance(run.error, ApiError):
        assert run.error.retry_after == last.asked


@settings(deadline=None, max_examples=50)
@given(st.text(), st.text())
def test_any_text_in_retry_after_is_a_number_of_seconds_or_ignored(text: str, date: str) -> None:
    seconds = retry_after({"retry-after": text, "date": date}, 0.0)
    assert seconds is None or 0 < seconds <= 1e9


@settings(deadline=None, max_examples=50)
@given(st.one_of(st.text(), st.text().map(lambda text: f'<{text}>; rel="next"')))
def test_any_link_has_a_cursor_or_none_or_is_invalid(link: str) -> None:
    try:
        found = next_cursor(response(200, [], link=link))
    except ValidationError:
        assert "next" in link
    else:
        assert found is None or found
