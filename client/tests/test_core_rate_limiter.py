"""The queue, the permits and the pauses after a 429. All calls of a client share them."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from fakes import Client, Outcome, Service, created, error, limits, refusal
from petstore_client import KeyBanned, Pet, PetstoreError, RateLimit, RateLimited, TimedOut, Wait
from staged import Stage, staged


def ok(remaining: int = 59, limit: int = 60, reset: int = 1_800_000_060, window: str | None = "minute") -> Outcome:
    return created(limits(remaining, limit, reset, window))


@staged()
async def test_one_request_is_sent_first_and_the_others_wait_for_its_response(stage: Stage) -> None:
    tasks = await stage.start(*"abc")
    assert stage.sent == 1
    await stage.service.respond_to(0, ok())
    assert stage.sent == 3
    await stage.service.respond_to(2, ok())
    await stage.service.respond_to(1, ok())
    assert [type(await task) for task in tasks] == [Pet] * 3


@pytest.mark.parametrize(("outcome", "expected"), [(ok(0), 1), (ok(1), 1), (ok(3), 3), (ok(59), 20), (created(), 20)])
def test_no_more_requests_are_in_flight_than_remain_or_than_max_connections(outcome: Outcome, expected: int) -> None:
    """Without the headers, only the connections limit the requests."""

    @staged()
    async def test(stage: Stage) -> None:
        await stage.start(*map(str, range(40)))
        await stage.service.respond_to(0, outcome)
        assert stage.sent - 1 == expected
        await stage.service.respond_to(1, outcome)
        assert stage.sent - 2 == expected

    test()


@staged(max_connections=2)
async def test_max_connections_is_an_option(stage: Stage) -> None:
    await stage.start(*"abcd")
    await stage.service.respond_to(0, ok())
    assert stage.sent == 3


@staged(max_connections=1)
async def test_calls_are_sent_in_the_order_in_which_they_began(stage: Stage) -> None:
    await stage.start(*"abcdef")
    for number in range(6):
        await stage.service.respond_to(number, ok())
    assert stage.service.names == list("abcdef")


@staged(max_connections=1)
async def test_a_cancelled_call_leaves_the_queue_and_the_next_one_is_sent(stage: Stage) -> None:
    tasks = await stage.start(*"abcd")
    tasks[1].cancel()
    await stage.service.settle()
    await stage.service.respond_to(0, ok())
    assert stage.sent == 2
    tasks[2].cancel()  # is in flight
    await stage.service.settle()
    assert stage.sent == 3
    await stage.service.respond_to(2, ok())
    assert (await tasks[3]).name == "Rex"
    assert stage.service.names == ["a", "d"]


@staged(max_connections=1)
async def test_a_call_that_is_cancelled_as_its_turn_comes_passes_it_on(stage: Stage) -> None:
    tasks = await stage.start(*"abc")
    stage.service.held[0].set_result(ok())
    while not tasks[0].done():
        await asyncio.sleep(0)
    tasks[1].cancel()  # has been woken but has not run yet
    await stage.service.settle()
    assert stage.sent == 2
    await stage.service.respond_to(1, ok())
    assert stage.service.names == ["a", "c"]


@staged(max_connections=1, total_timeout=60)
async def test_waiting_in_the_queue_counts_toward_total_timeout_only(stage: Stage) -> None:
    first, second, third = await stage.start(*"abc")
    await stage.advance(59)
    await stage.service.respond_to(0, ok())
    assert stage.sent == 2
    await stage.advance(1)
    with pytest.raises(TimedOut, match="not sent: earlier requests"):
        await third
    await stage.service.respond_to(1, ok())
    assert (await first).name == (await second).name == "Rex"
    assert [attempt.seconds for attempt in stage.attempts] == [59, 1], "without the wait"


@staged(max_connections=1)
async def test_a_queue_is_reported_once_when_a_call_has_waited_for_a_second(stage: Stage) -> None:
    await stage.start(*"abcd")
    await stage.advance(0.9)
    assert stage.waits == []
    await stage.advance(0.2)
    assert [(round(wait.seconds, 6), wait.reason, wait.calls) for wait in stage.waits] == [(1.1, "queue", 3)]
    for number in range(4):
        await stage.advance(5)
        await stage.service.respond_to(number, ok())
    assert len(stage.waits) == 1
    await stage.start(*"ef")
    await stage.service.respond_to(4, ok())
    await stage.start(*"gh")
    await stage.advance(2)
    assert [wait.calls for wait in stage.waits] == [3, 2], "once for each time that there is a queue"


@staged(max_connections=1)
async def test_a_queue_is_also_reported_if_its_calls_are_sent_quickly(stage: Stage) -> None:
    await stage.start(*map(str, range(10)))
    for number in range(6):
        await stage.advance(0.3)
        await stage.service.respond_to(number, ok())
    assert [(wait.reason, wait.calls) for wait in stage.waits] == [("queue", 6)]


def known_after(*outcomes: Outcome) -> RateLimit | None:
    """Returns what a client knows about its limit after these responses."""
    service = Service(*outcomes)
    with Client("sync", service, total_timeout=0.1) as client:  # leaves no time for a retry
        for _ in outcomes:
            with contextlib.suppress(PetstoreError):
                client.create_pet("Rex", 7)
        return client.rate_limit


@pytest.mark.parametrize(
    "outcome",
    [
        created(),
        created(limits(3) | {"X-RateLimit-Reset": "soon"}),
        error(404, "not_found", limits(3, window="address")),
        error(429, "rate_limit_exceeded", limits(0, window="address"), retry_after=60),
        error(503, "unavailable", limits(3, window="address")),
        error(401, "unauthorized", limits(3, window=None)),
        httpx2.ReadError("cut"),
    ],
)
def test_an_outcome_that_does_not_describe_the_limit_of_the_key_changes_nothing(outcome: Outcome) -> None:
    assert known_after(ok(7), outcome) == RateLimit(60, 7, 1_800_000_060, "minute")
    assert known_after(outcome) is None


def test_an_older_response_that_arrives_later_does_not_raise_the_remaining_requests() -> None:
    assert known_after(ok(5), ok(3), ok(4)) == RateLimit(60, 3, 1_800_000_060, "minute")


@pytest.mark.parametrize("new", [(59, 60, 1_800_000_120), (299, 300, 1_800_000_060), (2, 60, 1_800_000_060)])
def test_another_window_another_limit_and_a_lower_number_replace_the_state(new: tuple[int, int, int]) -> None:
    remaining, limit, reset = new
    assert known_after(ok(3), ok(remaining, limit, reset)) == RateLimit(limit, remaining, reset, "minute")


def test_a_service_that_does_not_name_its_windows_still_limits() -> None:
    assert known_after(ok(3, window=None)) == RateLimit(60, 3, 1_800_000_060, None)
    assert known_after(error(429, "rate_limit_exceeded", limits(0, window=None))) == RateLimit(60, 0, 1_800_000_060)


@staged()
async def test_a_429_pauses_all_calls_and_is_reported_once_with_their_number(stage: Stage) -> None:
    await stage.start(*"abcde")
    await stage.service.respond_to(0, refusal(60))
    assert stage.waits == [Wait(63, "minute_limit", 5)]
    assert stage.service.seconds == 63, "no request was sent during the pause"
    assert stage.sent == 2
    await stage.service.respond_to(1, ok(reset=1_800_000_120))
    assert stage.sent == 6
    assert len(stage.waits) == 1


@staged()
async def test_the_refused_call_is_sent_first_after_the_pause(stage: Stage) -> None:
    await stage.start(*"abc")
    await stage.service.respond_to(0, refusal(9))
    await stage.service.respond_to(1, ok())
    assert stage.service.names == ["a", "a"]


@staged(total_timeout=None)
async def test_requests_that_are_refused_together_cause_one_pause(stage: Stage) -> None:
    await stage.start(*"abcdef")
    await stage.service.respond_to(0, ok())
    for number in (1, 2, 3):
        stage.service.held[number].set_result(refusal(60))
    await stage.service.settle()
    assert stage.service.seconds == 63
    assert [wait.seconds for wait in stage.waits] == [63]
    await stage.service.respond_to(6, refusal(60))
    assert [wait.seconds for wait in stage.waits] == [63, 64], "the pause after the probe has twice the jitter"


@staged(total_timeout=None)
async def test_a_request_that_was_in_flight_prolongs_the_pause_if_it_must_wait_longer(stage: Stage) -> None:
    await stage.start(*"abcd")
    await stage.service.respond_to(0, ok())
    stage.service.held[1].set_result(refusal(60))
    stage.service.held[2].set_result(refusal(70))
    stage.service.held[3].set_result(refusal(7200, "day"))
    await stage.service.settle()
    assert stage.service.seconds == 7200
    assert [(wait.reason, wait.seconds) for wait in stage.waits] == [("minute_limit", 63), ("day_limit", 7200)]


@staged()
async def test_a_late_success_from_before_the_pause_does_not_end_it(stage: Stage) -> None:
    await stage.start(*"abcd")
    await stage.service.respond_to(0, ok())
    stage.service.held[1].set_result(refusal(60))
    stage.service.held[2].set_result(ok())
    await stage.service.settle()
    assert stage.service.seconds == 63
    assert stage.sent == 5, "one request probes the service"


@staged(total_timeout=600)
async def test_all_calls_that_cannot_wait_for_the_day_limit_fail_at_once_and_say_so(stage: Stage) -> None:
    tasks = await stage.start(*"abcde")
    patient = await stage.start("f", client=stage.client.with_options(total_timeout=None))
    await stage.service.respond_to(0, refusal(3600, "day"))
    for number, task in enumerate(tasks):
        with pytest.raises(RateLimited, match="limit: day") as raised:
            await task
        assert raised.value.window == "day"
        assert raised.value.retry_after == pytest.approx(3608 if number else 3600, abs=8)
    assert stage.service.seconds == 3604, "the other call waits"
    await stage.service.respond_to(1, ok())
    assert (await patient[0]).name == "Rex"


def test_a_call_during_a_pause_that_exceeds_total_timeout_raises_without_sending() -> None:
    service = Service(error(429, "key_banned", limits(0) | {"X-Request-Id": "first"}, retry_after=100), created())
    with Client("sync", service, total_timeout=90) as client:
        for left in (100, 104):
            with pytest.raises(KeyBanned) as raised:
                client.create_pet("Rex", 7)
            assert raised.value.retry_after == left, "first as the service said, then the rest of the pause"
            assert (raised.value.limit, raised.value.request_id) == (60, "first")
        service.advance(14)
        with pytest.raises(KeyBanned):
            client.create_pet("Rex", 7)  # a pause that ends with total_timeout leaves no time to send
        assert len(service.requests) == 1
        service.advance(0.5)
        client.create_pet("Rex", 7)
        assert service.waits == [104]


def test_the_jitter_is_reset_by_a_success() -> None:
    service = Service(refusal(2), refusal(2), created(), refusal(2), created())
    with Client("sync", service) as client:
        client.create_pet("Rex", 7)
        client.create_pet("Ada", 7)
    assert service.waits == [2.25, 2.5, 0, 2.25]


@pytest.mark.parametrize("bad", [0, -1])
def test_fewer_than_one_connection_is_a_value_error(bad: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Client("sync", Service(), max_connections=bad)


def test_threads_share_the_queue() -> None:
    service = Service(*[ok()] * 50)
    with ThreadPoolExecutor(8) as pool, service.client(max_connections=2) as client:
        pets = list(pool.map(lambda number: client.create_pet(str(number), 1), range(50)))
    assert len(pets) == len(service.requests) == 50
