"""The gate on a Redis Cluster whose shards fail, return, lose records and move slots."""

import asyncio
import contextlib
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import hiredis
import pytest
from redis import Redis as Client
from redis.crc import key_slot
from redis.exceptions import ResponseError

from harness.backends import Redis, free_port, running
from harness.gates import NOW, PLENTY, REFUSE, answers_again, ask, eventually
from harness.redis_topologies import (
    KEY_IDS,
    SLOTS,
    RedisCluster,
    cluster_running,
    cluster_url,
    key_on,
    shard_of,
    slots_of,
)
from harness.stores import GatePlace
from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy, open_gate
from petstore.gate.doctor import check_redis
from petstore.gate.redis_cluster import REDIRECTS_MAX, owners_in
from petstore.gate.redis_script import VERSIONS_RECORD, key_record
from petstore.plans import Limits


def test_each_slot_has_the_owner_that_the_cluster_names() -> None:
    shards = [[0, 9, [b"one.example", 7000], [b"its replica", 1]], [10, SLOTS - 2, [b"", 7001]]]
    owners = owners_in(shards, "asked.example")
    assert len(owners) == SLOTS
    assert owners[:10] == [("one.example", 7000)] * 10
    assert set(owners[10:-1]) == {("asked.example", 7001)}  # this server does not know its own name
    assert owners[-1] is None


def test_a_command_follows_a_bounded_number_of_redirects() -> None:
    """A server that does not know its own name sends every script to itself."""
    commands: Counter[bytes] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        port = writer.get_extra_info("sockname")[1]
        slots = f"*1\r\n*3\r\n:0\r\n:{SLOTS - 1}\r\n*2\r\n$0\r\n\r\n:{port}\r\n"
        replies = {b"CLUSTER": slots, b"EVALSHA": f"-MOVED 1 :{port}\r\n", b"HELLO": "%1\r\n$5\r\nproto\r\n:3\r\n"}
        while data := await reader.read(65536):
            parser.feed(data)
            while (words := parser.gets()) is not False:
                commands[words[0]] += 1
                writer.write(replies.get(words[0], "+OK\r\n").encode())
        writer.close()

    async def work() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            gate = open_gate(f"redis+cluster://127.0.0.1:{server.sockets[0].getsockname()[1]}", Path(), REFUSE)
            with pytest.raises(Unavailable, match="MovedError"):
                await gate.keys_version("live")
            assert commands[b"EVALSHA"] == 1 + REDIRECTS_MAX
            await gate.close()

    asyncio.run(work())


def test_a_cluster_that_cannot_be_reached_is_an_outage(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        with pytest.raises(Unavailable, match="ConnectionError"):
            await asyncio.wait_for(gate.keys_version("live"), 30)

    url = f"redis+cluster://127.0.0.1:{free_port()}"
    GatePlace(tmp_path, url).use(work, REFUSE)
    assert "does not respond" in asyncio.run(check_redis(url)).faults[0]


def test_the_doctor_finds_a_shard_that_loses_records(redis_cluster: RedisCluster) -> None:
    for client, node in zip(redis_cluster.clients, redis_cluster.nodes, strict=True):
        client.config_set("appendonly", "no")
        try:
            faults = asyncio.run(check_redis(redis_cluster.url())).faults
        finally:
            client.config_set("appendonly", "yes")
        assert faults == [f"Redis at 127.0.0.1:{node.port} loses counters when it restarts: set appendonly yes"]


def test_the_doctor_finds_slots_without_an_owner() -> None:
    with running(Redis("--cluster-enabled", "yes", "--databases", "1")) as alone:
        url = f"redis+cluster://127.0.0.1:{alone.port}"
        faults = asyncio.run(check_redis(url)).faults
    assert faults == [f"{url} does not respond: some slots have no owner"]


def test_the_script_is_loaded_again_on_shards_that_lost_it(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    async def work(gate: Gate) -> list[int]:
        await asyncio.gather(*(ask(gate, key_id, Limits(9, 9)) for key_id in KEY_IDS))
        for client in redis_cluster.clients[1:]:
            client.script_flush()
        return [(await ask(gate, key_id, Limits(9, 9))).remaining for key_id in KEY_IDS]

    assert GatePlace(tmp_path, redis_cluster.url()).use(work, REFUSE) == [7] * len(KEY_IDS)


def test_the_fallback_decides_for_a_shard_that_takes_no_writes(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    key_id = key_on((shard_of(VERSIONS_RECORD) + 1) % 3)
    client = redis_cluster.clients[shard_of(key_record(key_id))]

    async def work(gate: Gate) -> list[int]:
        version = await gate.keys_version("live")
        admitted = [await gate.admit("live", key_id, Limits(9, 9), version, NOW, "other") for _ in range(2)]
        assert await gate.keys_version("live") == version and not gate.degraded()
        assert (
            await gate.admit("live", key_id, Limits(9, 9), version - 1, NOW, "other") is None
        )  # as if a key had changed since then
        for versions in zip(*(a[1] for a in admitted if a), strict=True):
            assert len(set(versions)) == 2 and max(versions) < 0  # so no cached page is used
        return [a[0].remaining for a in admitted if a]

    place = GatePlace(tmp_path, redis_cluster.url())
    client.config_set("maxmemory", 1)
    try:
        assert place.use(work, GatePolicy()) == [8, 7]
    finally:
        client.config_set("maxmemory", 0)


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_a_shard_that_is_down_fails_its_own_keys_only(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests for other shards are decided immediately in every round, and each is counted once."""
    rounds = 5

    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        await asyncio.gather(*(ask(gate, name, PLENTY) for name in KEY_IDS))
        cluster.nodes[down].kill() if fault == "killed" else cluster.nodes[down].hang()
        later = []
        for number in range(rounds):
            began = time.monotonic()
            asked = [gate.admit("live", name, PLENTY, version, NOW, "other") for name in KEY_IDS]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [name for name, answer in zip(KEY_IDS, answers, strict=True) if isinstance(answer, tuple)] == well
            assert all(isinstance(answer, Unavailable | tuple) for answer in answers), answers
            later += [time.monotonic() - began] if number else []
        assert min(later) < 0.4, later  # only the first round waits for the shard
        with pytest.raises(Unavailable):
            await gate.windows(KEY_IDS)
        with pytest.raises(Unavailable):
            [rows async for rows in gate.all_windows()]
        assert await gate.keys_version("live") == version
        assert [w.day_used for w in await gate.windows(well)] == [1 + rounds] * len(well)
        cluster.nodes[down].start() if fault == "killed" else cluster.nodes[down].go_on()
        assert await answers_again(gate, lost)

    with cluster_running() as cluster:
        down = (shard_of(VERSIONS_RECORD) + 1) % 3
        lost = key_on(down)
        well = [key_id for key_id in KEY_IDS if shard_of(key_record(key_id)) != down]
        for client in cluster.clients:
            client.config_set("cluster-require-full-coverage", "no")
        GatePlace(tmp_path, cluster.url()).use(work, REFUSE)
    messages = [record.message for record in caplog.records]
    # On a slow machine the shard may fail once more before it has joined the others again.
    assert messages == ["shard down", "shard back"] * max(1, len(messages) // 2)
    shard = f"127.0.0.1:{cluster.nodes[down].port}"
    assert {record.__dict__["fields"]["shard"] for record in caplog.records} == {shard}


def test_a_slot_without_owner_fails_its_own_keys_until_it_has_one(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        with pytest.raises(Unavailable, match="no shard"):
            await ask(gate, "key_0", PLENTY)
        assert (await ask(gate, well, PLENTY)).remaining == PLENTY.per_day - 1
        owner.execute_command("CLUSTER ADDSLOTS", slot)
        assert await answers_again(gate, "key_0")

    slot = key_slot(key_record("key_0").encode())
    well = next(key_id for key_id in KEY_IDS[1:] if shard_of(key_record(key_id)) == shard_of(key_record("key_0")))
    with cluster_running() as cluster:
        place = GatePlace(tmp_path, cluster.url())
        place.use(lambda gate: gate.keys_version("live"), REFUSE)
        owner = cluster.clients[shard_of(key_record("key_0"))]
        for client in (owner, *cluster.clients):
            client.config_set("cluster-require-full-coverage", "no")
            with contextlib.suppress(ResponseError):  # the other servers may already know it
                client.execute_command("CLUSTER DELSLOTS", slot)
        place.use(work, REFUSE)


def test_a_shard_that_is_reset_fails_its_own_keys_until_its_slots_have_an_owner(tmp_path: Path) -> None:
    """The shard replies that the cluster is down. It is the first server that the gate asks for the slot map."""

    async def work(gate: Gate) -> None:
        for name in (lost, well):
            await ask(gate, name, PLENTY)
        cluster.clients[down].flushall()
        cluster.clients[down].execute_command("CLUSTER RESET HARD")
        with pytest.raises(Unavailable, match="ClusterDown"):
            await ask(gate, lost, PLENTY)
        for client in others:
            client.execute_command("CLUSTER FORGET", known_as)
        others[0].execute_command("CLUSTER ADDSLOTS", *slots_of(down))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            await ask(gate, well, PLENTY)  # works throughout the fault
            with contextlib.suppress(Unavailable):
                await ask(gate, lost, PLENTY)
                break
            await asyncio.sleep(0.02)  # polls until the deadline
        assert time.monotonic() < deadline
        # Only this test is still connected to the shard, and the gate has stopped refreshing its slot map.
        assert await eventually(lambda: len(cluster.clients[down].client_list()) == 1)
        assert await eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    with cluster_running() as cluster:
        down = (shard_of(VERSIONS_RECORD) + 1) % 3
        lost = key_on(down)
        well = key_on(shard_of(VERSIONS_RECORD))
        others = [client for number, client in enumerate(cluster.clients) if number != down]
        known_as = cluster.clients[down].execute_command("CLUSTER MYID")
        for client in cluster.clients:
            client.config_set("cluster-require-full-coverage", "no")
        nodes = sorted(cluster.nodes, key=lambda node: node is not cluster.nodes[down])
        GatePlace(tmp_path, cluster_url(nodes)).use(work, REFUSE)


def test_a_closed_gate_probes_no_shard(tmp_path: Path) -> None:
    async def work() -> None:
        gate = open_gate(cluster.url(), tmp_path, REFUSE)
        await gate.keys_version("live")
        cluster.nodes[shard_of(VERSIONS_RECORD)].kill()
        with pytest.raises(Unavailable):
            await gate.keys_version("live")
        await gate.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with cluster_running() as cluster:
        asyncio.run(work())


def test_without_the_shard_of_the_versions_the_gate_is_down(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        for node in cluster.nodes:
            node.kill()
        with pytest.raises(Unavailable):
            await gate.keys_version("live")
        for node in cluster.nodes:
            node.start()
        assert await answers_again(gate)
        assert await gate.keys_version("live") > version

    with cluster_running() as cluster:
        GatePlace(tmp_path, cluster.url()).use(work, REFUSE)


@pytest.mark.parametrize("what", ["a record", "the versions"])
def test_a_moving_slot_is_followed(tmp_path: Path, what: str) -> None:
    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        assert (await ask(gate, "key_0", Limits(9, 9))).remaining == 8
        cluster.begin_move(slot, name, shard_of(name), target)
        assert (await ask(gate, "key_0", Limits(9, 9))).remaining == 7
        assert await gate.keys_version("live") == version
        cluster.end_move([slot], target)
        async with asyncio.timeout(60):
            while (after := await gate.keys_version("live")) != await gate.keys_version("live"):
                pass  # until the gate knows the new owner
        assert (after > version) == (what == "the versions")  # the new owner might not have the latest versions
        assert (await ask(gate, "key_0", Limits(9, 9))).remaining == 6

    name = key_record("key_0") if what == "a record" else VERSIONS_RECORD
    slot = key_slot(name.encode())
    with cluster_running() as cluster:
        target = (shard_of(name) + 1) % 3
        GatePlace(tmp_path, cluster.url()).use(work, REFUSE)
        assert cluster.clients[target].get(name) is not None


def test_a_cluster_that_is_created_after_the_start_is_found(tmp_path: Path) -> None:
    """The gate finds the cluster even if one batch runs out of time on unresponsive hosts that are listed before it."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(running(Redis("--cluster-enabled", "yes", "--databases", "1")))
        client: Any = stack.enter_context(contextlib.closing(Client(port=node.port)))
        silent = [stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(4)]

        async def work(gate: Gate) -> None:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await gate.keys_version("live")
            client.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
            assert await answers_again(gate)

        hosts = ",".join(f"127.0.0.1:{port}" for port in [*(s.getsockname()[1] for s in silent), node.port])
        GatePlace(tmp_path, f"redis+cluster://{hosts}").use(work, REFUSE)


def test_a_server_outside_the_cluster_is_asked_last(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    with running(Redis("--cluster-enabled", "yes", "--databases", "1")) as alone:

        async def work(gate: Gate) -> None:
            with pytest.raises(Unavailable):
                await gate.keys_version("live")
            assert await answers_again(gate)

        url = redis_cluster.url().replace("://", f"://127.0.0.1:{alone.port},")
        GatePlace(tmp_path, url).use(work, REFUSE)
