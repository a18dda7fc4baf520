"""The queue in front of the Redis gate: what goes together, who is told what, and what is left when it closes."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client

from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy
from petstore.gate.redis import Crowded, RedisGate, Step
from petstore.observability.metrics import GATE_BATCH, GATE_ERRORS, GATE_QUEUE
from petstore.plans import Limits
from tests.backends import Redis
from tests.places import GatePlace
from tests.redis_topologies import RedisCluster
from tests.test_gate import NOW, PLENTY, ask
from tests.test_gate_redis import REFUSE, until


def test_what_one_turn_of_the_loop_brings_is_one_step(redis: Redis, tmp_path: Path) -> None:
    def steps() -> int:
        with contextlib.closing(Client(port=redis.port)) as client:
            return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    async def work(gate: Gate) -> int:
        version = await gate.keys_version("live")
        before = steps()
        await asyncio.gather(*(gate.admit("live", f"key_{i}", PLENTY, version, NOW) for i in range(300)))
        return steps() - before

    assert GatePlace(tmp_path, redis.url()).use(work) == 1


def test_one_step_is_under_way_at_a_time(redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[int] = []

    async def work(gate: Gate) -> None:
        assert isinstance(gate, RedisGate)
        version = await gate.keys_version("live")
        step, begun, free = gate._link.step, asyncio.Event(), asyncio.Event()
        at_once = 0

        async def held_up(*arguments: Any) -> Any:
            nonlocal at_once
            at_once += 1
            under_way.append(at_once)
            begun.set()
            await free.wait()
            answer = await step(*arguments)
            at_once -= 1
            return answer

        monkeypatch.setattr(gate._link, "step", held_up)
        asking = [asyncio.ensure_future(gate.admit("live", f"key_{i}", PLENTY, version, NOW)) for i in range(2)]
        await begun.wait()
        for number in range(2, 5):  # each in a turn of its own, while the first step is under way
            asking.append(asyncio.ensure_future(gate.admit("live", f"key_{number}", PLENTY, version, NOW)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        free.set()
        assert None not in await asyncio.gather(*asking)

    GatePlace(tmp_path, redis.url()).use(work, REFUSE)
    assert under_way == [1, 1]  # the first, and all that came meanwhile


def test_at_most_500_requests_go_together_and_what_goes_and_waits_is_measured(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    async def work(gate: Gate) -> None:
        assert isinstance(gate, RedisGate)
        version = await gate.keys_version("live")
        step = gate._link.step

        async def watched(*arguments: Any) -> Any:
            seen.append(GATE_QUEUE.cells[()])
            return await step(*arguments)

        monkeypatch.setattr(gate._link, "step", watched)
        before = [*GATE_BATCH.cell()]
        await asyncio.gather(*(gate.admit("live", f"key_{i}", PLENTY, version, NOW) for i in range(1_200)))
        assert GATE_QUEUE.cells[()] == 0
        await gate.keys_version("live")  # no request: no batch
        grown = [new - old for new, old in zip(GATE_BATCH.cell(), before, strict=True)]
        assert (sum(grown[:-1]), grown[-1]) == (3, 1_200)

    GatePlace(tmp_path, redis.url()).use(work, REFUSE)
    assert seen == [1_200, 700, 200, 0]


async def two_answers(gate: RedisGate, patch: pytest.MonkeyPatch, changed: Callable[[Any], Any]) -> list[Any]:
    """What two requests at once are told when the link's answers come changed."""
    version = await gate.keys_version("live")
    step = gate._link.step

    async def other(*arguments: Any) -> Step:
        versions, answers = await step(*arguments)
        return Step(versions, changed(answers))

    with patch.context() as patched:
        patched.setattr(gate._link, "step", other)
        both = [gate.admit("live", name, PLENTY, version, NOW) for name in ("key_a", "key_b")]
        return await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), 5)


def test_a_shard_that_fails_fails_whom_it_concerns(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(gate: Gate) -> None:
        assert isinstance(gate, RedisGate)
        errors = GATE_ERRORS.cells[()]
        bad, good = await two_answers(gate, monkeypatch, lambda answers: [Unavailable("a shard"), *answers[1:]])
        assert isinstance(bad, Unavailable) and isinstance(good, tuple)
        assert GATE_ERRORS.cells[()] == errors + 1
        assert not gate.down

    GatePlace(tmp_path, redis.url()).use(work, REFUSE)


def test_whatever_goes_wrong_nobody_is_left_waiting_and_it_heals(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(gate: Gate) -> None:
        assert isinstance(gate, RedisGate)
        step, faults = gate._link.step, 3

        async def breaks(*arguments: Any) -> Step:
            nonlocal faults
            if faults > 0:
                faults -= 1
                raise ValueError("a fault in a library")
            return await step(*arguments)

        monkeypatch.setattr(gate._link, "step", breaks)
        with pytest.raises(Unavailable, match="a fault in a library"):
            await asyncio.wait_for(gate.admit("live", "key_a", PLENTY, 0, NOW), 5)
        assert gate.down
        assert await until(lambda: not gate.down)
        await ask(gate, "key_a", PLENTY)

    GatePlace(tmp_path, redis.url()).use(work, REFUSE)


def test_an_answer_that_is_missing_is_an_outage_and_nobody_is_left_waiting(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(gate: Gate) -> None:
        assert isinstance(gate, RedisGate)
        good, bad = await two_answers(gate, monkeypatch, lambda answers: answers[:-1])
        assert isinstance(good, tuple) and isinstance(bad, Unavailable)
        assert await until(lambda: not gate.down)

    GatePlace(tmp_path, redis.url()).use(work, REFUSE)


def test_at_most_20_000_requests_wait_for_the_gate(redis: Redis, tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        admits = (gate.admit("live", "key_a", PLENTY, version, NOW) for _ in range(20_020))
        outcomes = await asyncio.gather(*admits, return_exceptions=True)
        assert [isinstance(outcome, Unavailable) for outcome in outcomes] == [False] * 20_000 + [True] * 20
        assert {str(outcome) for outcome in outcomes[20_000:]} == {"too many requests wait for the gate"}
        await ask(gate, "key_a", PLENTY)

    GatePlace(tmp_path, redis.url()).use(work, REFUSE)


def test_a_crowd_is_no_outage(redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is decided on by the node's own file, and a version is raised for all nodes before that is told."""
    monkeypatch.setattr("petstore.gate.redis.WAITING_MAX", 100)
    url = redis.url()

    async def catalogue(gate: Gate) -> int:
        passed = await gate.admit("live", "key_other", PLENTY, await gate.keys_version("live"), NOW)
        assert passed is not None
        return passed[1]

    async def work(gate: Gate) -> None:
        other = GatePlace(tmp_path / "other", url).open()
        before, version = await catalogue(other), await gate.keys_version("live")
        crowd = [asyncio.ensure_future(gate.admit("live", "key_a", PLENTY, version, NOW)) for _ in range(100)]
        await asyncio.sleep(0)
        late = [
            gate.admit("live", "key_a", PLENTY, version, NOW),
            gate.admit_address("live", "192.0.2.1", NOW),
            gate.peek_address("live", "192.0.2.1", NOW),
        ]
        outcomes = await asyncio.gather(*late, gate.raise_version("live", "catalogue"), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Crowded, Crowded, Crowded, type(None)]
        assert await catalogue(other) > before
        assert await gate.keys_version("live") == version and not gate.degraded()
        assert all(passed and passed[1] > 0 for passed in await asyncio.gather(*crowd))
        await other.close()

    GatePlace(tmp_path, url).use(work)
    assert not (tmp_path / "gate-outage.mdb").exists()


@pytest.mark.parametrize("outage", ["refuse", "degrade"])
def test_a_gate_that_is_closed_has_let_go_of_its_connection(redis: Redis, tmp_path: Path, outage: Any) -> None:
    place = GatePlace(tmp_path, redis.url())

    def connections() -> int:
        with contextlib.closing(Client.from_url(place.url or "")) as client:
            database = str(client.client_info()["db"])
            return sum(each["db"] == database for each in client.client_list()) - 1  # without this one

    async def work() -> None:
        gate = place.open(GatePolicy(outage=outage))
        await ask(gate, "key_a", PLENTY)
        assert connections() == 1
        await gate.close()
        assert await until(lambda: connections() == 0)

    asyncio.run(work())


def test_a_gate_that_is_closed_has_let_go_of_every_shard(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    def connections() -> int:
        return sum(len(client.client_list()) for client in redis_cluster.clients)

    async def work() -> None:
        before = connections()
        gate = GatePlace(tmp_path, redis_cluster.url()).open(REFUSE)
        await ask(gate, "key_a", PLENTY)
        assert connections() > before
        await gate.close()
        assert await until(lambda: connections() == before)

    asyncio.run(work())


def test_cancelled_requests_never_shift_anothers_answer(redis: Redis, tmp_path: Path) -> None:
    """Every key has a limit of its own, so an answer that was meant for another would show."""
    dice = random.Random(5)

    async def one(gate: Gate, number: int) -> int:
        version = await gate.keys_version("live")
        passed = await gate.admit("live", f"key_{number}", Limits(1_000 + number, 10**6), version, NOW)
        assert passed is not None and passed[0].limit == 1_000 + number
        return 1

    async def work(gate: Gate) -> int:
        finished = 0
        for _ in range(60):
            tasks = [asyncio.create_task(one(gate, number)) for number in range(100)]
            for _ in range(dice.randint(0, 6)):
                await asyncio.sleep(0)
            for task in dice.sample(tasks, 40):
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, int | asyncio.CancelledError) for each in done), done
            finished += sum(each for each in done if isinstance(each, int))
        return finished

    assert GatePlace(tmp_path, redis.url()).use(work, REFUSE) >= 60 * 60
