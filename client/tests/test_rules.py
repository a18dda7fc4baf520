"""The rules on retrying, proved over random sequences of answers: never early, never too often, never too long."""

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import REX, Clock, Run, answer, core, error
from petstore_client import ApiError
from petstore_client._answers import next_query
from petstore_client._core import Rules
from petstore_client._retry import retry_after
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


@settings(deadline=None, max_examples=300)
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


@settings(deadline=None)
@given(st.text(), st.text())
def test_no_text_of_a_retry_after_is_more_than_ignored(text: str, date: str) -> None:
    seconds = retry_after({"retry-after": text, "date": date}, 0.0)
    assert seconds is None or 0 < seconds <= 1e9


@settings(deadline=None)
@given(st.text())
def test_no_link_breaks_the_search_for_the_next_page(link: str) -> None:
    found = next_query(answer(200, [], link=link))
    assert found is None or found in link
