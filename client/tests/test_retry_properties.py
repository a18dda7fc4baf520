"""After random sequences of outcomes, the client never retries too early, too often or for too long."""

import asyncio
from collections import Counter, defaultdict
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, NamedTuple

import httpx2
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import ValidationError

from fakes import Client, Outcome, Service, created, error
from petstore_client import ApiError, Attempt, Pet, PetstoreError, TimedOut
from petstore_client._messages import Response
from petstore_client._responses import next_cursor
from petstore_client._retries import retry_after

DATE = datetime(2026, 11, 14, 12, 0, tzinfo=UTC)


class Scripted(NamedTuple):
    """One outcome of an attempt, and what the rules say about it, determined without the client's code."""

    outcome: Outcome
    rule: str
    """done, permanent, outage, refused, late or crash"""
    asked: float | None = None
    """The seconds in a valid Retry-After."""


CUT = Scripted(httpx2.ReadError("cut"), "outage")
LATE = Scripted(httpx2.ReadTimeout("late"), "outage")
DONE = Scripted(created(), "done")

CODES = [(400, "invalid_body"), (403, "insufficient_scope"), (404, "not_found"), (409, "a_code_of_the_future"),
         (410, "gone"), (413, "body_too_large"), (418, "a_code_of_the_future"), (422, "idempotency_mismatch"),
         (302, "moved"), (501, "unknown"), (505, "malformed_request"), (408, "request_timeout"),
         (429, "rate_limit_exceeded"), (429, "key_banned"), (429, "a_code_of_the_future"), (500, "internal_error"),
         (502, "unknown"), (503, "unavailable"), (504, "unknown"), (599, "unknown")]  # fmt: skip
RULES = {408: "late", 429: "refused", 500: "crash", 502: "outage", 503: "outage", 504: "outage", 599: "crash"}


@st.composite
def errors(draw: st.DrawFn, longest: int = 10**30) -> Scripted:
    status, code = draw(st.sampled_from(CODES))
    seconds = draw(st.one_of(st.none(), st.integers(0, 100), st.integers(min(longest, 10**6), longest)))
    form = draw(st.sampled_from(["seconds", "date", "malformed"]))
    headers: dict[str, Any] = {}
    asked = None
    if seconds is not None and form == "seconds":
        headers["Retry-After"] = f" {seconds:02d} "
        asked = min(float(seconds), 1e9) or None
    elif seconds is not None and form == "date":
        seconds = min(seconds, 10**6)
        headers |= {"Retry-After": _date(seconds), "Date": _date(0)}
        asked = float(seconds) or None
    elif seconds is not None:
        headers["Retry-After"] = draw(st.sampled_from(["", "soon", "-5", "1.5", "+3", "1e3", "Mon, 99 Foo"]))
    return Scripted(error(status, code, headers), RULES.get(status, "permanent"), asked)


def _date(seconds: int) -> str:
    return format_datetime(datetime.fromtimestamp(DATE.timestamp() + seconds, UTC), usegmt=True)


@settings(deadline=None, max_examples=80)
@given(
    script=st.lists(st.one_of(errors(), st.sampled_from([CUT, LATE, DONE])), min_size=1, max_size=12),
    total_timeout=st.sampled_from([0.1, 0.3, 1.0, 20.0, 120.0, 1e6]),
)
def test_every_sequence_of_outcomes_of_a_call_is_retried_by_the_rules(
    script: list[Scripted], total_timeout: float
) -> None:
    script = [*script, *[DONE] * 12]
    service = Service(*[scripted.outcome for scripted in script])
    raised = None
    with Client("sync", service, total_timeout=total_timeout) as client:
        try:
            client.create_pet("Rex", 7, idempotency_key="the-key")
        except PetstoreError as found:
            raised = found
    attempts = len(service.requests)

    assert service.seconds < total_timeout, "longer than allowed"
    assert {
        (request.method, request.url.path, request.content, request.headers["idempotency-key"])
        for request in service.requests
    } == {("POST", "/v1/pets", b'{"name":"Rex","categoryId":7}', "the-key")}, "a retry must be the same request"

    for number, waited in enumerate(service.waits):
        scripted = script[number]
        assert scripted.rule not in ("done", "permanent")
        assert sum(each.rule == "crash" for each in script[: number + 1]) <= 2
        asked = scripted.asked or 0.0
        assert waited >= (asked or 0.25), "before the Retry-After or half of the backoff had passed"
        assert waited <= asked + 8, "too late"

    last = script[attempts - 1]
    if raised is None:
        assert last is DONE
        return
    assert last is not DONE
    crashes = sum(each.rule == "crash" for each in script[:attempts])
    if last.rule != "permanent" and crashes <= 2:  # the next wait must have been too long
        longest = min(total_timeout, 23 * 3600)
        assert service.seconds + (last.asked or 0.0) + 8 >= longest
    if isinstance(raised, ApiError):
        assert raised.retry_after == last.asked


class Sent(NamedTuple):
    name: str
    began: float
    ended: float
    scripted: Scripted


class Slow(Service):
    """Responds to asyncio clients after random numbers of turns of the event loop. Records the requests."""

    def __init__(self, script: list[Scripted], delays: list[int]) -> None:
        super().__init__()
        self.sent: list[Sent] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.probes: Counter[int] = Counter()
        self.script = script
        self._delays = list(delays)
        self._outages = 0
        self._is_outage = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        began, outages = self.seconds, self._outages
        scripted = self.script.pop(0) if self.script else DONE
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self._is_outage:
            self.probes[outages] += 1
        for _ in range(self._delays.pop() if self._delays else 0):
            await asyncio.sleep(0)
        self.in_flight -= 1
        if scripted.rule in ("outage", "refused"):
            if not self._is_outage or outages == self._outages:
                self._outages += 1
            self._is_outage = True
        elif outages == self._outages:
            self._is_outage = False
        self.sent.append(Sent(request.headers["Idempotency-Key"], began, self.seconds, scripted))
        self.outcomes.append(scripted.outcome)
        return self.handle_request(request)


@settings(deadline=None, max_examples=150)
@given(
    script=st.lists(st.one_of(errors(3600), st.sampled_from([CUT, LATE, DONE, DONE])), max_size=40),
    delays=st.lists(st.integers(0, 9), max_size=60),
    calls=st.integers(1, 25),
    connections=st.integers(1, 6),
    total_timeout=st.sampled_from([1.0, 60.0, 600.0]),
)
def test_concurrent_calls_share_their_pauses_by_the_rules(
    script: list[Scripted], delays: list[int], calls: int, connections: int, total_timeout: float
) -> None:
    async def gather(service: Slow) -> tuple[list[Pet | BaseException], list[Attempt]]:
        attempts: list[Attempt] = []
        options: dict[str, Any] = {"max_connections": connections, "total_timeout": total_timeout}
        async with service.async_client(on_attempt=attempts.append, **options) as client:
            pets = (client.create_pet("Rex", 7, idempotency_key=f"call-{number}") for number in range(calls))
            outcomes = await asyncio.gather(*pets, return_exceptions=True)
            service.script.clear()
            service.advance(3700)  # the longest pause ends
            pets = (client.create_pet("Rex", 7, idempotency_key=f"after-{number}") for number in range(connections))
            await asyncio.gather(*pets)
        return outcomes, attempts

    service = Slow([DONE, *script], delays)
    outcomes, _ = asyncio.run(gather(service))

    assert service.most_in_flight <= connections
    assert not service.probes or max(service.probes.values()) == 1, "several requests probed the service at once"
    assert all(isinstance(outcome, Pet | PetstoreError) for outcome in outcomes), outcomes
    by_call: defaultdict[str, list[Sent]] = defaultdict(list)
    for sent in service.sent:
        by_call[sent.name].append(sent)
    for name, each in by_call.items():
        rules = [sent.scripted.rule for sent in each]
        assert not {"done", "permanent"} & set(rules[:-1]), f"{name} was repeated"
        assert rules.count("crash") <= 3
        assert name.startswith("after") or each[-1].began < total_timeout
    for early, late in ((early, late) for early in service.sent for late in service.sent if late.began > early.ended):
        if early.scripted.rule in ("refused", "outage"):
            assert late.began >= early.ended + min(early.scripted.asked or 0.0, 3600), "sent too early"
    for number, outcome in enumerate(outcomes):
        last = by_call[f"call-{number}"][-1:]
        is_done = bool(last) and last[0].scripted.rule == "done"
        # The rest of a total_timeout of 1 s can be so short that an attempt times out in real time.
        assert isinstance(outcome, Pet) == is_done or (total_timeout == 1.0 and isinstance(outcome, TimedOut))


@settings(deadline=None, max_examples=50)
@given(st.text(), st.text())
def test_any_text_in_retry_after_is_a_number_of_seconds_or_ignored(text: str, date: str) -> None:
    seconds = retry_after({"retry-after": text, "date": date}, 0.0)
    assert seconds is None or 0 < seconds <= 1e9


@settings(deadline=None, max_examples=50)
@given(st.one_of(st.text(), st.text().map(lambda text: f'<{text}>; rel="next"')))
def test_any_link_has_a_cursor_or_none_or_is_invalid(link: str) -> None:
    try:
        found = next_cursor(Response(200, {"link": link}, b"[]"))
    except ValidationError:
        assert "next" in link
    else:
        assert found is None or found
