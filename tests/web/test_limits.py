"""Minute and day limits of a key: which requests count, what the headers say, and what survives a restart."""

import math
import time
from collections.abc import Callable

import pytest

from harness.servers import Key, Server
from harness.wire import Response, asking
from petstore.plans import Limits, Plan

MINUTE, DAY = 60, 86_400
ATTEMPTS = 5


def ask(server: Server, key: Key, times: int = 1) -> list[Response]:
    return asking(server.port, times, key.headers)


def statuses(responses: list[Response]) -> list[int]:
    return [response.status for response in responses]


def window_in(response: Response) -> tuple[str, str]:
    """Returns the limit and the remaining requests that a response reports."""
    return response.headers["x-ratelimit-limit"], response.headers["x-ratelimit-remaining"]


def resets_at_end(response: Response, before: float, after: float, seconds: int) -> bool:
    """Returns whether X-RateLimit-Reset is the rounded-up end of a window that began between the two times."""
    return math.ceil(before + seconds) <= int(response.headers["x-ratelimit-reset"]) <= math.ceil(after + seconds)


@pytest.mark.parametrize(("plan", "per_minute"), [("free", 60), ("pro", 300), ("business", 1000)])
def test_plan_admits_exactly_its_requests_per_minute(server: Server, plan: Plan, per_minute: int) -> None:
    responses = ask(server, server.key(plan), per_minute + 2)
    assert statuses(responses) == [200] * per_minute + [429] * 2
    assert [response.remaining for response in responses] == [*range(per_minute - 1, -1, -1), 0, 0]
    assert {response.headers["x-ratelimit-limit"] for response in responses} == {str(per_minute)}


def test_free_plan_admits_exactly_1000_a_day(timed: Server) -> None:
    key = timed.key("free")
    answers = []
    for minute in range(17):
        timed.move_clock(minute * (MINUTE + 1))
        answers += ask(timed, key, 60)
    assert statuses(answers) == [200] * 1000 + [429] * 20
    assert window_in(answers[-1]) == ("1000", "0")


def test_day_limit_holds_over_minutes_and_reopens_after_a_day(timed: Server) -> None:
    key = timed.key(limits=Limits(4, 6))
    assert statuses(ask(timed, key, 4)) == [200] * 4
    timed.move_clock(MINUTE + 1)
    assert statuses(ask(timed, key, 4)) == [200, 200, 429, 429]
    timed.move_clock(DAY - 5)
    assert statuses(ask(timed, key)) == [429]
    timed.move_clock(DAY + 5)
    assert statuses(ask(timed, key, 4)) == [200] * 4


def test_request_refused_by_the_minute_consumes_nothing_of_the_day(timed: Server) -> None:
    key = timed.key(limits=Limits(3, 5))
    assert statuses(ask(timed, key, 6)) == [200] * 3 + [429] * 3
    timed.move_clock(MINUTE + 1)
    responses = ask(timed, key, 3)
    assert statuses(responses) == [200, 200, 429]
    assert [window_in(response) for response in responses] == [("5", "1"), ("5", "0"), ("5", "0")]


def test_request_refused_by_the_day_consumes_nothing_of_the_minute(timed: Server) -> None:
    key = timed.key(limits=Limits(3, 2))
    assert statuses(ask(timed, key)) == [200]
    timed.move_clock(DAY - 20)
    assert statuses(ask(timed, key, 3)) == [200, 429, 429]
    timed.move_clock(DAY + 1)  # a new day, but still the minute of the last three requests
    assert statuses(ask(timed, key, 3)) == [200, 200, 429]


def test_window_starts_at_the_keys_first_request_in_it(timed: Server) -> None:
    key = timed.key(limits=Limits(10, 1000))
    before = time.time()
    (first,) = ask(timed, key)
    assert resets_at_end(first, before, time.time(), MINUTE)
    timed.move_clock(30)
    assert ask(timed, key)[0].headers["x-ratelimit-reset"] == first.headers["x-ratelimit-reset"]
    timed.move_clock(95)
    before = time.time() + 95
    (later,) = ask(timed, key)
    assert later.remaining == 9
    assert resets_at_end(later, before, time.time() + 95, MINUTE)


def test_headers_speak_of_the_window_with_the_least_remaining(timed: Server) -> None:
    key = timed.key(limits=Limits(3, 5))
    before = time.time()
    first = ask(timed, key, 3)[0]
    after = time.time()
    assert window_in(first) == ("3", "2")
    assert resets_at_end(first, before, after, MINUTE)
    timed.move_clock(MINUTE + 5)
    (later,) = ask(timed, key)
    assert window_in(later) == ("5", "1")
    assert resets_at_end(later, before, after, DAY)


def test_headers_speak_of_the_day_in_a_tie(timed: Server) -> None:
    key = timed.key(limits=Limits(2, 3))
    before = time.time()
    assert window_in(ask(timed, key)[0]) == ("2", "1")
    after = time.time()
    timed.move_clock(MINUTE + 5)
    (tied,) = ask(timed, key)
    assert window_in(tied) == ("3", "1")
    assert resets_at_end(tied, before, after, DAY)


def test_429_speaks_of_the_day_when_it_reopens_after_the_minute(timed: Server) -> None:
    key = timed.key(limits=Limits(2, 2))
    before = time.time()
    refused = ask(timed, key, 3)[-1]
    assert refused.code == "rate_limit_exceeded"
    assert resets_at_end(refused, before, time.time(), DAY)
    assert DAY - 10 <= int(refused.headers["retry-after"]) <= DAY


def test_429_speaks_of_the_minute_when_it_reopens_after_the_day(timed: Server) -> None:
    key = timed.key(limits=Limits(2, 3))
    assert statuses(ask(timed, key)) == [200]
    timed.move_clock(DAY - 30)
    before = time.time() + DAY - 30
    refused = ask(timed, key, 3)[-1]
    assert refused.code == "rate_limit_exceeded"
    assert window_in(refused) == ("2", "0")
    assert resets_at_end(refused, before, time.time() + DAY - 30, MINUTE)


@pytest.mark.parametrize("limits", [Limits(2, 100), Limits(100, 2)], ids=["minute", "day"])
def test_retry_after_is_exact_to_the_second(timed: Server, limits: Limits) -> None:
    """A request after that many seconds is admitted. A request one second earlier is not."""
    for _ in range(ATTEMPTS):
        timed.move_clock(0)
        key = timed.key(limits=limits)
        began = time.monotonic()
        refused = ask(timed, key, 3)[-1]
        wait = int(refused.headers["retry-after"])
        timed.move_clock(wait - 1)
        early = ask(timed, key)
        if time.monotonic() - began < 0.9:  # otherwise the machine stalled and the second has passed
            break
    assert wait >= 1
    assert statuses(early) == [429]
    assert early[0].headers["retry-after"] == "1"
    timed.move_clock(wait)
    assert statuses(ask(timed, key)) == [200]


@pytest.mark.parametrize("stop", [Server.stop, Server.kill], ids=["restart", "kill -9"])
def test_counters_survive(timed: Server, stop: Callable[[Server], object]) -> None:
    key = timed.key(limits=Limits(6, 8))
    first = ask(timed, key, 4)[-1]
    stop(timed)
    timed.start()
    responses = ask(timed, key, 3)
    assert statuses(responses) == [200, 200, 429]
    assert responses[-1].headers["x-ratelimit-reset"] == first.headers["x-ratelimit-reset"]
    timed.move_clock(MINUTE + 1)
    assert [window_in(response) for response in ask(timed, key, 2)] == [("8", "1"), ("8", "0")]


@pytest.mark.parametrize(
    ("plan", "policy"),
    [
        ("free", '"minute";q=60;w=60, "day";q=1000;w=86400'),
        ("pro", '"minute";q=300;w=60, "day";q=10000;w=86400'),
        ("business", '"minute";q=1000;w=60, "day";q=100000;w=86400'),
    ],
)
def test_ietf_policy_names_the_plans_limits(timed: Server, plan: Plan, policy: str) -> None:
    (response,) = ask(timed, timed.key(plan))
    assert response.headers["ratelimit-policy"] == policy


def test_ietf_headers_speak_of_the_same_window(timed: Server) -> None:
    key = timed.key(limits=Limits(3, 5))
    first = ask(timed, key, 3)[0]
    assert first.headers["ratelimit"] == '"minute";r=2;t=60'
    timed.move_clock(MINUTE + 1)
    name, remaining, left = ask(timed, key)[0].headers["ratelimit"].split(";")
    assert (name, remaining) == ('"day"', "r=1")
    assert DAY - MINUTE - 20 <= int(left.removeprefix("t=")) <= DAY - MINUTE - 1


def test_ietf_headers_are_absent_by_default(server: Server) -> None:
    (response,) = ask(server, server.key("free"))
    assert not {"ratelimit", "ratelimit-policy"} & response.headers.keys()
