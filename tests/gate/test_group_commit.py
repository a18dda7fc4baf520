"""The LMDB gate handles all requests of one event-loop iteration in one transaction."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.gates import ask, use_lmdb
from petstore.errors import Unavailable
from petstore.gate.lmdb import GroupCommit, LmdbGate
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, LIMITED

Work = Callable[[Any], list[Any]]


def test_requests_of_one_turn_are_admitted_in_the_order_they_asked(tmp_path: Path) -> None:
    async def work(gate: LmdbGate) -> None:
        decisions = await asyncio.gather(*(ask(gate, "key_a", Limits(150, 1000)) for _ in range(250)))
        assert [decision.outcome for decision in decisions] == [ADMITTED] * 150 + [LIMITED] * 100
        assert [decision.remaining for decision in decisions[:150]] == list(range(149, -1, -1))

    use_lmdb(tmp_path, work)


def test_a_request_that_is_given_up_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def work(gate: LmdbGate) -> None:
        asking = [asyncio.ensure_future(ask(gate, "key_a", Limits(9, 9))) for _ in range(3)]
        await asyncio.sleep(0)
        asking[1].cancel()
        await asyncio.wait(asking)
        # Whether or not the cancelled request was counted, the others get counts in order.
        assert asking[0].result().remaining == 8 and asking[2].result().remaining in (6, 7)

    use_lmdb(tmp_path, work)


def test_a_transaction_has_a_bounded_number_of_steps() -> None:
    sizes = []

    def transact(work: Work) -> list[Any]:
        results = work("a transaction")
        sizes.append(len(results))
        return results

    async def inside() -> list[Any]:
        group = GroupCommit(transact, steps_max=100)
        return await asyncio.gather(*(group.run(lambda _, number: number, number) for number in range(250)))

    assert asyncio.run(inside()) == list(range(250))
    assert sizes == [100, 100, 50]


def test_an_error_reaches_the_steps_of_its_transaction_and_no_others() -> None:
    calls = 0

    def transact(work: Work) -> list[Any]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("the gate file cannot grow")
        return work("a transaction")

    async def inside() -> list[Any]:
        group = GroupCommit(transact, steps_max=2)
        return await asyncio.gather(*(group.run(lambda _: "run") for _ in range(3)), return_exceptions=True)

    first, second, third = asyncio.run(inside())
    assert isinstance(first, Unavailable) and isinstance(second, Unavailable) and third == "run"


def test_a_bug_in_a_step_is_not_an_outage() -> None:
    def transact(work: Work) -> list[Any]:
        return work("a transaction")

    async def inside() -> None:
        with pytest.raises(ZeroDivisionError):
            await GroupCommit(transact).run(lambda _: 1 // 0)

    asyncio.run(inside())
