"""Values computed in the background: without a store, in an event loop of the test."""

import asyncio
from collections.abc import Awaitable, Callable

from petstore.console.background import BackgroundValue
from petstore.errors import Unavailable


class SlowComputation:
    """A computation that waits for `proceed`. Its result is the number of its calls."""

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
        assert result is not None and result.value == 1, "the last one serves"

    run(test)
