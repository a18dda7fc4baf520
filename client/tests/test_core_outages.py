"""How calls share an outage: one pause, one probe at a time, and the budget of each call."""

import asyncio

import httpx2
import pytest

from fakes import Outcome, Service, created, error, refusal
from petstore_client import ConnectionFailed, Pet, RateLimited, ServerError, TimedOut, Wait
from staged import Stage, staged

CUT, CLOSED, HUNG = httpx2.ReadError("cut"), httpx2.ConnectError("refused"), httpx2.ReadTimeout("late")
DOWN = error(503, "unavailable")


async def begin(stage: Stage, *names: str) -> list[asyncio.Task[Pet]]:
    """Starts calls, and responds to the first, so that the others are in flight or in the queue."""
    tasks = await stage.start("first", *names)
    await stage.service.respond_to(0, created())
    return tasks[1:]


@pytest.mark.parametrize("outage", [CUT, HUNG, DOWN, error(502, "unknown"), error(504, "unknown")])
def test_an_outage_pauses_all_calls_and_one_at_a_time_probes_the_service(outage: Outcome) -> None:
    @staged(max_connections=5)
    async def test(stage: Stage) -> None:
        tasks = await begin(stage, *map(str, range(9)))
        assert stage.sent == 6
        for number in range(1, 6):
            stage.service.held[number].set_result(outage)
        await stage.service.settle()
        assert stage.service.seconds == 0.375, "the calls that failed together cause one pause"
        for probe, end in ((6, 1.125), (7, 2.625), (8, 5.625)):
            assert stage.sent == probe + 1, "one probe is in flight"
            await stage.service.respond_to(probe, outage)
            assert stage.service.seconds == end
        assert [wait.seconds for wait in stage.waits] == [0.375, 0.75, 1.5, 3]
        assert [wait.calls for wait in stage.waits] == [5, 9, 9, 9]
        await stage.service.respond_to(9, created())
        assert stage.sent == 10 + 5, "the outage is over"
        for number in range(10, 18):
            await stage.service.respond_to(number, created())
        assert [(await task).name for task in tasks] == ["Rex"] * 9

    test()


@staged(max_connections=5)
async def test_requests_that_hang_do_not_hold_up_the_probe(stage: Stage) -> None:
    await begin(stage, *"abc")
    await stage.service.respond_to(1, CUT)
    assert stage.service.seconds == 0.375
    assert stage.sent == 5, "two requests hang, and a third probes the service"
    await stage.service.respond_to(2, created())
    assert stage.service.seconds == 0.375
    await stage.service.respond_to(4, created())
    assert stage.sent == 5


@staged(max_connections=1)
async def test_each_probe_is_another_call_so_that_one_request_cannot_keep_an_outage_going(stage: Stage) -> None:
    """A request that always breaks its connection, because it makes the service crash, delays the others only once."""
    await begin(stage, "bad", "b", "c")
    await stage.service.respond_to(1, CUT)
    await stage.service.respond_to(2, created())
    assert stage.service.names == ["first", "bad", "b"]
    await stage.service.respond_to(3, CUT)
    await stage.service.respond_to(4, created())
    assert stage.service.names == ["first", "bad", "b", "bad", "c"]


@staged(max_connections=1)
async def test_a_request_that_fails_again_has_a_longer_backoff_of_its_own(stage: Stage) -> None:
    await begin(stage, "bad", *"bcd")
    await stage.service.respond_to(1, CUT)
    await stage.service.respond_to(2, created())
    await stage.service.respond_to(3, CUT)
    await stage.service.respond_to(4, created())
    assert stage.service.names == ["first", "bad", "b", "bad", "c"]
    assert [wait.seconds for wait in stage.waits] == [0.375, 0.375], "the pauses of all calls"
    assert stage.service.seconds == 0.375 + 0.75, "the backoff of the bad request"


@staged(total_timeout=20)
async def test_a_call_whose_budget_ends_raises_the_error_of_the_outage_unless_it_was_only_queued(stage: Stage) -> None:
    tasks = await begin(stage, *map(str, range(40)))
    answered = 1
    while not all(task.done() for task in tasks):
        for held in stage.service.held[answered:]:
            held.set_result(error(503, "unavailable", {"X-Request-Id": f"r-{answered}"}))
        answered = stage.sent
        await stage.service.settle()
    raised = [task.exception() for task in tasks]
    kinds = [type(each) for each in raised]
    assert set(kinds[:20]) == {ServerError}, "these were in flight when the outage began"
    assert set(kinds[-10:]) == {TimedOut}
    assert 20 - 8 <= stage.service.seconds <= 20
    queued = raised[-1]
    assert isinstance(queued, TimedOut)
    assert isinstance(queued.__cause__, ServerError)
    assert "not sent" in str(queued)


@staged(total_timeout=1)
async def test_a_call_that_cannot_wait_for_the_probe_fails_at_once(stage: Stage) -> None:
    (attempted,) = await begin(stage, "a")
    await stage.service.respond_to(1, error(503, "unavailable", retry_after=60))
    with pytest.raises(ServerError):
        await attempted
    with pytest.raises(TimedOut, match="unavailable"):
        await stage.client.create_pet("b", 7)
    assert stage.service.seconds == 0
    assert stage.sent == 2


def test_gathered_calls_to_a_mistyped_host_all_fail_after_10_seconds() -> None:
    async def gather() -> tuple[Service, set[type]]:
        service = Service(*[CLOSED] * 100)
        async with service.async_client() as client:
            calls = (client.create_pet("Rex", 7) for _ in range(500))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        return service, {type(outcome) for outcome in outcomes}

    service, kinds = asyncio.run(gather())
    assert kinds == {ConnectionFailed}
    assert service.seconds <= 10
    assert len(service.requests) <= 6


def test_gathered_calls_survive_an_outage_with_few_requests() -> None:
    async def gather() -> tuple[Service, list[Pet]]:
        service = Service(created(), *[CUT] * 8, *[created()] * 1000)
        async with service.async_client() as client:
            return service, await asyncio.gather(*(client.create_pet("Rex", 7) for _ in range(1000)))

    service, pets = asyncio.run(gather())
    assert len(pets) == 1000
    assert len(service.requests) == 1008


@staged()
async def test_the_retry_after_of_a_503_holds_for_all_calls(stage: Stage) -> None:
    tasks = await begin(stage, "a", "b")
    await stage.service.respond_to(1, error(503, "unavailable", retry_after=30))
    assert stage.waits == [Wait(31.5, "outage", 1)]
    new = await stage.start("c")
    assert stage.sent == 4
    assert stage.service.seconds == 31.5
    for number in (2, 3, 4):
        await stage.service.respond_to(number, created())
    assert all(task.done() for task in [*tasks, *new])


@staged()
async def test_a_429_in_an_outage_is_obeyed(stage: Stage) -> None:
    await begin(stage, "a", "b")
    stage.service.held[1].set_result(CUT)
    stage.service.held[2].set_result(refusal(60))
    await stage.service.settle()
    assert stage.service.seconds == 60
    assert [(wait.reason, wait.seconds) for wait in stage.waits] == [("no_response", 0.375), ("minute_limit", 60)]


@pytest.mark.parametrize("failure", [error(500, "internal_error"), error(408, "request_timeout")])
def test_a_500_and_a_408_delay_only_their_own_call(failure: Outcome) -> None:
    @staged(max_connections=1)
    async def test(stage: Stage) -> None:
        await begin(stage, "a", "b")
        await stage.service.respond_to(1, failure)
        assert stage.waits == [Wait(0.375, "failure", 1)]
        await stage.service.respond_to(2, created())
        assert stage.service.names == ["first", "a", "b"]

    test()


@staged()
async def test_a_day_limit_after_an_outage_is_not_hidden_by_it(stage: Stage) -> None:
    (task,) = await begin(stage, "a")
    await stage.service.respond_to(1, CUT)
    await stage.service.respond_to(2, refusal(80_000, "day"))
    with pytest.raises(RateLimited, match="limit: day"):
        await task
    with pytest.raises(RateLimited, match="limit: day"):
        await stage.client.create_pet("b", 7)


@staged(max_connections=3)
async def test_no_permit_is_lost_by_failures_cancellations_and_bugs(stage: Stage) -> None:
    limited = error(429, "rate_limit_exceeded", retry_after=1)
    outcomes: list[Outcome] = [CUT, created(), DOWN, error(404, "not_found"), ZeroDivisionError("a bug"), limited, HUNG]
    tasks = await begin(stage, *map(str, range(30)))
    number = 1
    while number < stage.sent:
        if number % 4 == 0:
            tasks[number % len(tasks)].cancel()
            await stage.service.settle()
        if not stage.service.held[number].done():
            await stage.service.respond_to(number, outcomes[number % len(outcomes)])
        number += 1
    assert all(task.done() for task in tasks)
    await stage.start(*"abcdef")
    await stage.service.respond_to(number, created())
    assert stage.sent == number + 1 + 3
