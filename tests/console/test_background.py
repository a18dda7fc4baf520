"""Background values and jobs, without a store and in the test's event loop."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from petstore.console.background import RUNNING_MAX, WAITING_MAX, BackgroundValue, Job, Jobs
from petstore.errors import OperatorError, Unavailable


class SlowComputation:
    """A computation that waits for `proceed`, then returns how many times it was called."""

    def __init__(self) -> None:
        self.calls = 0
        self.proceed = asyncio.Event()
        self.fails = False

    async def __call__(self) -> int:
        self.calls += 1
        await self.proceed.wait()
        if self.fails:
            raise Unavailable("the store is down")
        return self.calls


def run(test: Callable[[SlowComputation, BackgroundValue[int]], Awaitable[None]]) -> None:
    async def inside() -> None:
        computation = SlowComputation()
        await test(computation, BackgroundValue(computation, wait_timeout=0.01))

    asyncio.run(inside())


def test_a_slow_value_is_computed_once_and_no_page_waits_for_it() -> None:
    async def test(computation: SlowComputation, value: BackgroundValue[int]) -> None:
        assert await asyncio.gather(*(value.latest() for _ in range(5))) == [None] * 5
        computation.proceed.set()
        result = await value.latest()
        assert result is not None and result.value == 1
        for _ in range(5):
            result = await value.latest()
        assert computation.calls == 1

    run(test)


def test_an_invalidated_value_is_computed_again() -> None:
    async def test(computation: SlowComputation, value: BackgroundValue[int]) -> None:
        computation.proceed.set()
        await value.latest()
        value.invalidate()
        result = await value.latest()
        assert result is not None and result.value == 2

    run(test)


def test_a_failed_computation_keeps_the_last_result() -> None:
    async def test(computation: SlowComputation, value: BackgroundValue[int]) -> None:
        computation.proceed.set()
        await value.latest()
        computation.fails = True
        value.invalidate()
        result = await value.latest()
        assert result is not None and result.value == 1

    run(test)


def test_a_page_that_needs_a_result_waits_for_the_first_one_only() -> None:
    async def test(computation: SlowComputation, value: BackgroundValue[int]) -> None:
        asyncio.get_running_loop().call_later(0.1, computation.proceed.set)  # ten times the usual timeout
        result = await value.latest(first_timeout=10.0)
        assert result is not None and result.value == 1
        computation.proceed.clear()
        value.invalidate()
        result = await asyncio.wait_for(value.latest(first_timeout=10.0), 5.0)
        assert result is not None and result.value == 1, "the previous result is used"

    run(test)


# Jobs that ask a question


async def asking(jobs: Jobs, timeout_seconds: float = 60.0) -> Job:
    """Starts a job that waits for an answer."""

    async def work(job: Job) -> str:
        await job.confirm("Again?", timeout_seconds)
        return "confirmed"

    job = jobs.start(Job("live", "a job", 1), work)
    await asyncio.sleep(0)
    assert (job.state, job.question) == ("waiting", "Again?")
    return job


async def ended(job: Job) -> tuple[str, str]:
    assert job.task is not None
    await job.task
    return job.state, job.result


def test_a_job_continues_after_the_answer_and_ends_without_one() -> None:
    async def test() -> None:
        async with Jobs() as jobs:
            confirmed, refused, unanswered = await asking(jobs), await asking(jobs), await asking(jobs, 0.01)
            jobs.answer(confirmed, True)
            jobs.answer(confirmed, False)  # too late
            jobs.answer(refused, False)
            assert await ended(confirmed) == ("finished", "confirmed")
            assert await ended(refused) == ("failed", "Cancelled. Nothing was changed.")
            assert await ended(unanswered) == ("failed", "No answer within ten minutes. Nothing was changed.")
            jobs.answer(unanswered, True)
            left = await asking(jobs)
        assert left.state == "failed", "the console stops"

    asyncio.run(test())


def test_jobs_that_wait_do_not_count_as_running_but_are_limited() -> None:
    async def forever(job: Job) -> str:
        await asyncio.Event().wait()
        return ""

    async def test() -> None:
        async with Jobs() as jobs:
            waiting = [await asking(jobs) for _ in range(WAITING_MAX)]
            with pytest.raises(OperatorError, match="10 imports are waiting for confirmation"):
                await asking(jobs)
            jobs.answer(waiting[0], False)
            await ended(waiting[0])
            for _ in range(RUNNING_MAX):
                jobs.start(Job("live", "a job", 1), forever)
            with pytest.raises(OperatorError, match="Two jobs are already running"):
                jobs.answer(waiting[1], True)
            assert waiting[1].state == "waiting"
            jobs.answer(waiting[1], False)
            assert await ended(waiting[1]) == ("failed", "Cancelled. Nothing was changed.")

    asyncio.run(test())
