"""The gate on a Redis Cluster: shards that go, come, forget and move, and whom that concerns."""

import asyncio
import contextlib
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client
from redis.crc import key_slot
from redis.exceptions import MovedError, ResponseError

from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy, open_gate
from petstore.gate.doctor import inspect_redis
from petstore.gate.redis import PATIENCE, PROBE_EVERY, VERSIONS, RedisGate, name_of
from petstore.gate.redis_cluster import LOOK_EVERY, LOOK_SECONDS, SHARD_SECONDS, ClusterLink, owners_in
from petstore.gate.redis_link import CONNECT_SECONDS, SENTINEL_SECONDS
from petstore.plans import Limits
from tests.backends import Redis, free_port, running
from tests.places import GatePlace
from tests.redis_topologies import SLOTS, RedisCluster, cluster_running, cluster_url, slots_of
from tests.test_gate import NOW, PLENTY, ask
from tests.test_gate_redis import REFUSE, healed

NAMES = [f"key_{number}" for number in range(20)]


def test_waits_fit_together() -> None:
    assert LOOK_EVERY < LOOK_SECONDS < SHARD_SECONDS < CONNECT_SECONDS < PATIENCE < 2  # seconds to a 503
    assert PROBE_EVERY < PATIENCE and 3 * SENTINEL_SECONDS < PATIENCE


def test_each_slot_has_the_owner_that_was_named_for_it() -> None:
    shards = [[0, 9, [b"one.example", 7000], [b"its replica", 1]], [10, SLOTS - 2, [b"", 7001]]]
    found = owners_in(shards, "asked.example")
    assert len(found) == SLOTS
    assert found[:10] == [("one.example", 7000)] * 10
    assert set(found[10:-1]) == {("asked.example", 7001)}  # who does not know its name is where it was asked
    assert found[-1] is None


def test_no_command_is_sent_round_for_ever() -> None:
    """By servers that each name the next, none of which knows its own name."""
    asked: list[object] = []

    class Ring(ClusterLink):
        async def _asked(self, place: object, commands: object) -> list[object]:
            asked.append(place)
            return [MovedError("1 :7001")]

    async def work() -> object:
        link = Ring([("one.example", 7000)], {})
        reply = await link._followed(("one.example", 7000), MovedError("1 :7001"), ("GET", "x"))
        await link.close()
        return reply

    assert isinstance(asyncio.run(work()), MovedError)
    assert asked == [("one.example", 7001)] * 3


def test_a_cluster_that_cannot_be_reached_is_an_outage(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        with pytest.raises(Unavailable, match="ConnectionError"):
            await asyncio.wait_for(gate.keys_version("live"), 5)

    url = f"redis+cluster://127.0.0.1:{free_port()}"
    GatePlace(tmp_path, url).use(work, REFUSE)
    assert "does not answer" in asyncio.run(inspect_redis(url)).faults[0]


def test_a_shard_that_forgets_is_found_whichever_it_is(redis_cluster: RedisCluster) -> None:
    for client, node in zip(redis_cluster.clients, redis_cluster.nodes, strict=True):
        client.config_set("appendonly", "no")
        try:
            faults = asyncio.run(inspect_redis(redis_cluster.url())).faults
        finally:
            client.config_set("appendonly", "yes")
        assert faults == [f"Redis at 127.0.0.1:{node.port} forgets counters when it is restarted: set appendonly yes"]


def test_a_cluster_without_an_owner_for_some_slots_does_not_pass_for_well_set() -> None:
    with running(Redis("--cluster-enabled", "yes", "--databases", "1")) as alone:
        faults = asyncio.run(inspect_redis(f"redis+cluster://127.0.0.1:{alone.port}")).faults
    assert faults == ["Redis does not answer: some slots belong to no shard"]


def test_shards_that_have_lost_the_script_get_it_again(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    async def work(gate: Gate) -> list[int]:
        await asyncio.gather(*(ask(gate, name, Limits(9, 9)) for name in NAMES))
        for client in redis_cluster.clients[1:]:
            client.script_flush()
        return [(await ask(gate, name, Limits(9, 9))).remaining for name in NAMES]

    assert GatePlace(tmp_path, redis_cluster.url()).use(work, REFUSE) == [7] * len(NAMES)


def test_what_is_remembered_comes_some_at_a_time(redis: Redis, redis_cluster: RedisCluster, tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        await asyncio.gather(*(ask(gate, name, PLENTY) for name in NAMES))

    async def remembered(gate: Gate) -> list[str]:
        return [name async for rows in gate.all_windows() for name, _ in rows]

    for url in (redis.url(), redis_cluster.url()):
        GatePlace(tmp_path, url).use(work, REFUSE)
        assert set(GatePlace(tmp_path, url).use(remembered, REFUSE)) >= set(NAMES)


def shard_of(name: str) -> int:
    return next(shard for shard in range(3) if key_slot(name.encode()) in slots_of(shard))


def test_keys_of_a_shard_that_takes_no_writes_are_counted_by_the_node(
    redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    full = next(name for name in NAMES if shard_of(name_of(name)) != shard_of(VERSIONS))
    client = redis_cluster.clients[shard_of(name_of(full))]

    async def work(gate: Gate) -> list[int]:
        version = await gate.keys_version("live")
        passed = [await gate.admit("live", full, Limits(9, 9), version, NOW) for _ in range(2)]
        assert await gate.keys_version("live") == version and not gate.degraded()
        assert await gate.admit("live", full, Limits(9, 9), version - 1, NOW) is None  # some key has changed since
        versions = {p[1] for p in passed if p}
        assert len(versions) == 2 and max(versions) < 0  # no page is served from memory
        return [p[0].remaining for p in passed if p]

    place = GatePlace(tmp_path, redis_cluster.url())
    client.config_set("maxmemory", 1)
    try:
        assert place.use(work, GatePolicy()) == [8, 7]
    finally:
        client.config_set("maxmemory", 0)


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_a_shard_that_is_down_fails_whom_it_concerns(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are answered in every round, at once, and are counted once for each."""
    rounds = 5

    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        await asyncio.gather(*(ask(gate, name, PLENTY) for name in NAMES))
        cluster.nodes[away].kill() if fault == "killed" else cluster.nodes[away].hang()
        for number in range(rounds):
            began = time.monotonic()
            asked = [gate.admit("live", name, PLENTY, version, NOW) for name in NAMES]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [name for name, answer in zip(NAMES, answers, strict=True) if isinstance(answer, tuple)] == well
            assert all(isinstance(answer, Unavailable | tuple) for answer in answers), answers
            assert number == 0 or time.monotonic() - began < 0.4  # nobody waits for it twice
        with pytest.raises(Unavailable):
            await gate.windows(NAMES)
        with pytest.raises(Unavailable):
            [rows async for rows in gate.all_windows()]
        assert await gate.keys_version("live") == version
        assert [w.day_used for w in await gate.windows(well)] == [1 + rounds] * len(well)
        cluster.nodes[away].start() if fault == "killed" else cluster.nodes[away].go_on()
        assert await healed(gate, lost)

    with cluster_running() as cluster:
        away = (shard_of(VERSIONS) + 1) % 3
        lost = next(name for name in NAMES if shard_of(name_of(name)) == away)
        well = [name for name in NAMES if shard_of(name_of(name)) != away]
        for client in cluster.clients:
            client.config_set("cluster-require-full-coverage", "no")
        GatePlace(tmp_path, cluster.url()).use(work, REFUSE)
    assert [record.message for record in caplog.records] == ["shard down", "shard back"]
    shard = f"127.0.0.1:{cluster.nodes[away].port}"
    assert [record.__dict__["fields"]["shard"] for record in caplog.records] == [shard, shard]


def test_a_slot_that_nobody_has_fails_whom_it_concerns_until_someone_does(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        with pytest.raises(Unavailable, match="no shard"):
            await ask(gate, "key_0", PLENTY)
        assert (await ask(gate, well, PLENTY)).remaining == PLENTY.per_day - 1
        owner.execute_command("CLUSTER ADDSLOTS", slot)
        assert await healed(gate, "key_0")

    slot = key_slot(name_of("key_0").encode())
    well = next(name for name in NAMES[1:] if shard_of(name_of(name)) == shard_of(name_of("key_0")))
    with cluster_running() as cluster:
        owner = cluster.clients[shard_of(name_of("key_0"))]
        for client in (owner, *cluster.clients):
            client.config_set("cluster-require-full-coverage", "no")
            with contextlib.suppress(ResponseError):  # it has forgotten already
                client.execute_command("CLUSTER DELSLOTS", slot)
        GatePlace(tmp_path, cluster.url()).use(work, REFUSE)


def test_a_shard_that_is_taken_out_while_the_gate_is_at_work_is_missed_by_its_own_records_only(tmp_path: Path) -> None:
    """It answers that the Cluster is down, and is the first who would be asked who has what."""

    async def work(gate: Gate) -> None:
        for name in (lost, well):
            await ask(gate, name, PLENTY)
        cluster.clients[away].flushall()
        cluster.clients[away].execute_command("CLUSTER RESET HARD")
        with pytest.raises(Unavailable, match="ClusterDown"):
            await ask(gate, lost, PLENTY)
        for client in others:
            client.execute_command("CLUSTER FORGET", known_as)
        others[0].execute_command("CLUSTER ADDSLOTS", *slots_of(away))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            await ask(gate, well, PLENTY)  # all the time
            with contextlib.suppress(Unavailable):
                await ask(gate, lost, PLENTY)
                break
            await asyncio.sleep(0.02)  # the poll of a condition, bounded
        assert time.monotonic() < deadline
        assert isinstance(gate, RedisGate) and isinstance(gate._link, ClusterLink)
        assert ("127.0.0.1", cluster.nodes[away].port) not in gate._link._links  # nobody asks it any more
        assert gate._link._looking is not None
        await asyncio.wait_for(gate._link._looking, 10)  # all is known, and all answer

    with cluster_running() as cluster:
        away = (shard_of(VERSIONS) + 1) % 3
        lost = next(name for name in NAMES if shard_of(name_of(name)) == away)
        well = next(name for name in NAMES if shard_of(name_of(name)) == shard_of(VERSIONS))
        others = [client for number, client in enumerate(cluster.clients) if number != away]
        known_as = cluster.clients[away].execute_command("CLUSTER MYID")
        for client in cluster.clients:
            client.config_set("cluster-require-full-coverage", "no")
        nodes = sorted(cluster.nodes, key=lambda node: node is not cluster.nodes[away])
        GatePlace(tmp_path, cluster_url(nodes)).use(work, REFUSE)


def test_a_gate_that_is_closed_looks_for_no_shard_any_more(tmp_path: Path) -> None:
    async def work() -> None:
        gate = open_gate(cluster.url(), tmp_path, REFUSE)
        await gate.keys_version("live")
        cluster.nodes[shard_of(VERSIONS)].kill()
        with pytest.raises(Unavailable):
            await gate.keys_version("live")
        await gate.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with cluster_running() as cluster:
        asyncio.run(work())


def test_without_the_shard_of_the_versions_a_cluster_is_down_until_it_is_back(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        for node in cluster.nodes:
            node.kill()
        with pytest.raises(Unavailable):
            await gate.keys_version("live")
        for node in cluster.nodes:
            node.start()
        assert await healed(gate)
        assert await gate.keys_version("live") > version

    with cluster_running() as cluster:
        GatePlace(tmp_path, cluster.url()).use(work, REFUSE)


@pytest.mark.parametrize("what", ["a record", "the versions"])
def test_a_slot_is_followed_to_the_shard_that_it_moves_to(tmp_path: Path, what: str) -> None:
    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        assert (await ask(gate, "key_0", Limits(9, 9))).remaining == 8
        cluster.begin_move(slot, name, shard_of(name), target)
        assert (await ask(gate, "key_0", Limits(9, 9))).remaining == 7
        assert await gate.keys_version("live") == version
        cluster.end_move([slot], target)
        async with asyncio.timeout(10):
            while (after := await gate.keys_version("live")) != await gate.keys_version("live"):
                pass  # until the gate has heard of it
        assert (after > version) == (what == "the versions")  # another server may not know the newest
        assert (await ask(gate, "key_0", Limits(9, 9))).remaining == 6

    name = name_of("key_0") if what == "a record" else VERSIONS
    slot = key_slot(name.encode())
    with cluster_running() as cluster:
        target = (shard_of(name) + 1) % 3
        GatePlace(tmp_path, cluster.url()).use(work, REFUSE)
        assert cluster.clients[target].get(name) is not None


def test_a_cluster_that_is_formed_after_the_start_is_found(tmp_path: Path) -> None:
    """And so is one behind hosts that do not answer, more of them than one step has patience for."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(running(Redis("--cluster-enabled", "yes", "--databases", "1")))
        client: Any = stack.enter_context(contextlib.closing(Client(port=node.port)))
        silent = [stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(4)]

        async def work(gate: Gate) -> None:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await gate.keys_version("live")
            client.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
            assert await healed(gate)

        hosts = ",".join(f"127.0.0.1:{port}" for port in [*(s.getsockname()[1] for s in silent), node.port])
        GatePlace(tmp_path, f"redis+cluster://{hosts}").use(work, REFUSE)


def test_a_server_that_was_taken_out_of_the_cluster_is_asked_last(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    with running(Redis("--cluster-enabled", "yes", "--databases", "1")) as alone:

        async def work(gate: Gate) -> None:
            with pytest.raises(Unavailable):
                await gate.keys_version("live")
            assert await healed(gate)

        url = redis_cluster.url().replace("://", f"://127.0.0.1:{alone.port},")
        GatePlace(tmp_path, url).use(work, REFUSE)
