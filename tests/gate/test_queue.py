"""The batches of the Redis gate: which calls share a batch, and what callers get if a batch fails."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client
from redis.asyncio.connection import Connection

from harness.backends import Redis
from harness.gates import NOW, PLENTY, REFUSE, FaultyLink, ask, eventually, use_link
from harness.in_process import Running, use_app
from harness.redis_topologies import RedisCluster
from harness.stores import GatePlace
from petstore.errors import Unavailable
from petstore.gate import CatalogueVersion, Gate, GatePolicy
from petstore.gate.fallback import FallbackGate
from petstore.gate.redis import QueueFull, RedisGate
from petstore.gate.redis_link import SingleLink
from petstore.gate.redis_script import ScriptReply
from petstore.gate.redis_url import connection_options, open_link
from petstore.observability.metrics import GATE_BATCH, GATE_ERRORS, GATE_QUEUE
from petstore.plans import Limits


def test_calls_of_one_turn_of_the_loop_are_one_batch(redis: Redis, tmp_path: Path) -> None:
    def batches() -> int:
        with contextlib.closing(Client(port=redis.port)) as client:
            return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    async def work(gate: Gate) -> int:
        version = await gate.keys_version("live")
        before = batches()
        await asyncio.gather(*(gate.admit("live", f"key_{i}", PLENTY, version, NOW, "other") for i in range(300)))
        return batches() - before

    assert GatePlace(tmp_path, redis.url()).use(work) == 1


def test_one_batch_is_in_flight_at_a_time(redis: Redis) -> None:
    in_flight: list[int] = []

    async def work(gate: RedisGate, link: FaultyLink) -> None:
        version = await gate.keys_version("live")
        run_script, begun, free = link.run_script, asyncio.Event(), asyncio.Event()
        at_once = 0

        async def delayed(*arguments: Any) -> ScriptReply:
            nonlocal at_once
            at_once += 1
            in_flight.append(at_once)
            begun.set()
            await free.wait()
            reply = await run_script(*arguments)
            at_once -= 1
            return reply

        link.run_script = delayed
        calls = [asyncio.ensure_future(gate.admit("live", f"key_{i}", PLENTY, version, NOW, "other")) for i in range(2)]
        await begun.wait()
        for number in range(2, 5):  # each in a separate iteration, while the first batch is in flight
            calls.append(asyncio.ensure_future(gate.admit("live", f"key_{number}", PLENTY, version, NOW, "other")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        free.set()
        assert None not in await asyncio.gather(*calls)

    use_link(redis.url(), work)
    assert in_flight == [1, 1]  # the first batch, and one with all later calls


def test_a_batch_has_at_most_500_calls_and_the_queue_is_measured(redis: Redis) -> None:
    queued = []

    async def work(gate: RedisGate, link: FaultyLink) -> None:
        version = await gate.keys_version("live")
        run_script = link.run_script

        async def recorded(*arguments: Any) -> ScriptReply:
            queued.append(GATE_QUEUE.cells[()])
            return await run_script(*arguments)

        link.run_script = recorded
        GATE_BATCH.cells.clear()
        await asyncio.gather(*(gate.admit("live", f"key_{i}", PLENTY, version, NOW, "other") for i in range(1_200)))
        assert GATE_QUEUE.cells[()] == 0
        await gate.keys_version("live")  # a batch without calls is not recorded
        *counts, total = GATE_BATCH.cells[()]
        assert (sum(counts), total) == (3, 1_200)

    use_link(redis.url(), work)
    assert queued == [1_200, 700, 200, 0]


async def two_calls(gate: RedisGate, link: FaultyLink, change: Callable[[Any], Any]) -> list[Any]:
    """Makes two calls in one batch and applies `change` to its results. Returns each call's result or error."""
    version = await gate.keys_version("live")
    run_script = link.run_script

    async def changed(*arguments: Any) -> ScriptReply:
        versions, results = await run_script(*arguments)
        return versions, change(results)

    link.run_script = changed
    calls = [gate.admit("live", name, PLENTY, version, NOW, "other") for name in ("key_a", "key_b")]
    try:
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
    finally:
        link.run_script = run_script


def test_a_failed_shard_fails_its_own_calls_only(redis: Redis) -> None:
    async def work(gate: RedisGate, link: FaultyLink) -> None:
        errors = GATE_ERRORS.cells[()]
        bad, good = await two_calls(gate, link, lambda results: [Unavailable("a shard"), *results[1:]])
        assert isinstance(bad, Unavailable) and isinstance(good, tuple)
        assert GATE_ERRORS.cells[()] == errors + 1
        assert not gate.down

    use_link(redis.url(), work)


def test_a_bug_is_no_outage_and_reaches_the_callers_as_itself(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    async def work(gate: RedisGate, link: FaultyLink) -> None:
        version = await gate.keys_version("live")
        run_script = link.run_script

        async def broken(*_: Any) -> ScriptReply:
            raise ValueError("a bug")

        link.run_script = broken
        calls = [gate.admit("live", "key_a", PLENTY, version, NOW, "other"), gate.announce("live", ["keys"])]
        errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        assert [repr(error) for error in errors] == ["ValueError('a bug')"] * 2
        assert not gate.down
        link.run_script = run_script
        assert await gate.keys_version("live") > version  # the change that failed is announced now
        await ask(gate, "key_a", PLENTY)

    use_link(redis.url(), work)
    assert [record.message for record in caplog.records] == ["gate failed"]
    assert "in broken" in (caplog.text)


def test_a_bug_in_the_gate_is_answered_500_with_all_headers(
    redis: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> ScriptReply:
        raise ValueError("a bug")

    def with_bug(_: Gate) -> Gate:
        link = FaultyLink(open_link(redis.url()))
        link.run_script = broken
        return RedisGate(link, REFUSE)

    async def work(app: Running) -> None:
        reply = await app.ask()
        assert reply.status == 500
        assert "x-ratelimit-reset" in reply.headers and "x-request-id" in reply.headers
        assert (await app.app.reject(400, "192.0.2.9")).status == 400
        await app.gate.close()

    use_app(tmp_path, work, wrap_gate=with_bug)
    assert {record.message for record in caplog.records} == {"gate failed", "internal error"}
    assert all(record.exc_info for record in caplog.records)


def test_a_bug_in_a_probe_does_not_keep_the_gate_down(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    async def work(gate: RedisGate, link: FaultyLink) -> None:
        errors: list[Exception] = [Unavailable("an outage"), Unavailable("an outage"), ValueError("a bug")]
        run_script = link.run_script

        async def failing(*arguments: Any) -> ScriptReply:
            if errors:
                raise errors.pop(0)
            return await run_script(*arguments)

        link.run_script = failing
        with pytest.raises(Unavailable, match="an outage"):
            await gate.keys_version("live")
        assert gate.down
        assert await eventually(lambda: not gate.down)
        await ask(gate, "key_a", PLENTY)

    use_link(redis.url(), work, probe_interval=0.01)
    assert [record.message for record in caplog.records] == ["gate down", "gate failed", "gate back"]


def test_a_missing_result_is_a_bug_and_every_caller_gets_a_reply(redis: Redis) -> None:
    async def work(gate: RedisGate, link: FaultyLink) -> None:
        good, bad = await two_calls(gate, link, lambda results: results[:-1])
        assert isinstance(good, tuple) and isinstance(bad, ValueError)

    use_link(redis.url(), work)


class WithoutReader:
    """A connection of a hypothetical redis-py version that has renamed the `_reader` attribute."""

    def __init__(self, **options: Any) -> None:
        self._connection = Connection(**options)

    def __getattr__(self, name: str) -> Any:
        if name == "_reader":
            raise AttributeError(name)
        return getattr(self._connection, name)


def test_a_redis_py_without_reader_is_a_bug_and_no_outage(redis: Redis, tmp_path: Path) -> None:
    """Without `_reader`, the gate could not tell a closed connection from an open one."""

    async def work() -> None:
        link = SingleLink({**connection_options(redis.url()), "connection_class": WithoutReader})
        gate = FallbackGate(RedisGate(link, GatePolicy()), tmp_path / "gate.mdb", GatePolicy())
        for _ in range(2):
            with pytest.raises(AttributeError, match="_reader"):
                await gate.keys_version("live")
        assert not gate.degraded()
        await gate.close()

    asyncio.run(work())
    assert not (tmp_path / "gate.mdb").exists()


def test_at_most_20_000_calls_wait_for_the_gate(redis: Redis, tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        calls = (gate.admit("live", "key_a", PLENTY, version, NOW, "other") for _ in range(20_020))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(outcome, Unavailable) for outcome in outcomes] == [False] * 20_000 + [True] * 20
        assert {str(outcome) for outcome in outcomes[20_000:]} == {"too many requests are waiting for the gate"}
        await ask(gate, "key_a", PLENTY)

    GatePlace(tmp_path, redis.url()).use(work, REFUSE)


def test_the_fallback_does_not_decide_when_the_queue_is_full(redis: Redis, tmp_path: Path) -> None:
    """A change is still announced to all nodes."""
    url, policy = redis.url(), GatePolicy(given_clock=True)

    async def catalogue(gate: Gate) -> CatalogueVersion:
        admitted = await gate.admit("live", "key_other", PLENTY, await gate.keys_version("live"), NOW, "other")
        assert admitted is not None
        return admitted[1]

    async def work() -> None:
        gate = FallbackGate(RedisGate(open_link(url), policy, queue_max=100), file, policy)
        other = RedisGate(open_link(url), policy)
        before, version = await catalogue(other), await gate.keys_version("live")
        waiting = [
            asyncio.ensure_future(gate.admit("live", "key_a", PLENTY, version, NOW, "other")) for _ in range(100)
        ]
        late = [  # in the same iteration of the event loop
            gate.admit("live", "key_a", PLENTY, version, NOW, "other"),
            gate.admit_address("live", "192.0.2.1", NOW),
            gate.peek_address("live", "192.0.2.1", NOW),
            gate.was_valid(bytes(32)),
        ]
        outcomes = await asyncio.gather(*late, gate.announce("live", ["added", "edited"]), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [QueueFull] * 4 + [type(None)]
        assert all(after > earlier for after, earlier in zip(await catalogue(other), before, strict=True))
        assert await gate.keys_version("live") == version and not gate.degraded()
        assert all(admitted and min(admitted[1]) > 0 for admitted in await asyncio.gather(*waiting))
        await other.close()
        await gate.close()

    file = tmp_path / "gate.mdb"
    asyncio.run(work())
    assert not file.exists()


@pytest.mark.parametrize("outage", ["refuse", "degrade"])
def test_closing_ends_the_connection(redis: Redis, tmp_path: Path, outage: Any) -> None:
    place = GatePlace(tmp_path, redis.url())

    def connections() -> int:
        with contextlib.closing(Client.from_url(place.url or "")) as client:
            database = str(client.client_info()["db"])
            return sum(each["db"] == database for each in client.client_list()) - 1  # not counting this client

    async def work() -> None:
        gate = place.open(GatePolicy(outage=outage))
        await ask(gate, "key_a", PLENTY)
        assert connections() == 1
        await gate.close()
        assert await eventually(lambda: connections() == 0)

    asyncio.run(work())


def test_closing_ends_the_connections_to_every_shard(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    def connections() -> int:
        return sum(len(client.client_list()) for client in redis_cluster.clients)

    async def work() -> None:
        before = connections()
        gate = GatePlace(tmp_path, redis_cluster.url()).open(REFUSE)
        await ask(gate, "key_a", PLENTY)
        assert connections() > before
        await gate.close()
        assert await eventually(lambda: connections() == before)

    asyncio.run(work())


@pytest.mark.parametrize("turns", [0, 1, 2, 5], ids=["at once", "scheduled", "begun", "in flight"])
def test_calls_that_wait_at_closing_fail_at_once(redis: Redis, turns: int) -> None:
    async def work(gate: RedisGate, link: FaultyLink) -> None:
        async def never(*_: Any) -> ScriptReply:
            await asyncio.Event().wait()
            raise AssertionError

        link.run_script = never
        calls = [asyncio.ensure_future(gate.admit("live", f"key_{i}", PLENTY, 0, NOW, "other")) for i in range(600)]
        calls.append(asyncio.ensure_future(gate.keys_version("live")))  # type: ignore[arg-type]  # only its error matters
        for _ in range(turns):
            await asyncio.sleep(0)
        await gate.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        assert {repr(outcome) for outcome in outcomes} == {"Unavailable('the gate is closed')"}
        assert asyncio.all_tasks() == {asyncio.current_task()}

    use_link(redis.url(), work)


def test_cancelled_calls_never_shift_the_replies_of_others(redis: Redis, tmp_path: Path) -> None:
    """Every key has a different limit, so that a reply meant for another key is noticed."""
    dice = random.Random(5)

    async def one(gate: Gate, number: int) -> int:
        version = await gate.keys_version("live")
        admitted = await gate.admit("live", f"key_{number}", Limits(1_000 + number, 10**6), version, NOW, "other")
        assert admitted is not None and admitted[0].limit == 1_000 + number
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
