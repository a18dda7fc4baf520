"""A Redis Cluster changes while a gate uses it: shards leave, are cut off, refuse writes, or move slots."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client
from redis.crc import key_slot

from harness.backends import Redis, running
from harness.gates import PLENTY, REFUSE, answers_again, ask
from harness.redis_topologies import (
    CLUSTER_NODE,
    RedisCluster,
    cluster_running,
    cluster_url,
    key_on,
    shard_of,
    slots_of,
)
from harness.served import wait_for
from harness.stores import GatePlace
from petstore.errors import Unavailable
from petstore.gate import Gate
from petstore.gate.redis_script import VERSIONS_RECORD, key_record
from petstore.plans import Limits


def knows(client: Any, nodes: int) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(nodes))


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["records", "the versions"])
def test_a_shard_that_left_the_cluster_is_not_asked(tmp_path: Path, what: str) -> None:
    async def work(gate: Gate) -> int:
        await ask(gate, key, Limits(9, 9))
        for name in leaving.keys("*"):
            cluster.begin_move(key_slot(name), name.decode(), gone, heir)
        cluster.end_move(slots_of(gone), heir)
        its_id = leaving.execute_command("CLUSTER MYID")
        for client in others:
            client.execute_command("CLUSTER FORGET", its_id)
        leaving.execute_command("CLUSTER RESET", "SOFT")
        assert wait_for(lambda: all(knows(client, 2) for client in others))
        assert await answers_again(gate, key)
        assert await answers_again(gate, key_on(heir))
        return (await ask(gate, key, Limits(9, 9))).remaining

    with cluster_running() as cluster:
        gone = shard_of(VERSIONS_RECORD) if what == "the versions" else (shard_of(VERSIONS_RECORD) + 1) % 3
        heir = (gone + 1) % 3
        leaving = cluster.clients[gone]
        others = [client for client in cluster.clients if client is not leaving]
        key = key_on(gone)
        assert GatePlace(tmp_path, cluster.url()).use(work, REFUSE) == 6


def replaced(cluster: RedisCluster, cut: int, replica: Redis) -> None:
    """Lets a replica take over a primary's slots. The primary is cut off and still considers itself their owner."""
    old = cluster.clients[cut]
    its_id = old.execute_command("CLUSTER MYID")
    with contextlib.closing(Client(port=replica.port)) as new:
        client: Any = new
        client.execute_command("CLUSTER MEET", "127.0.0.1", cluster.nodes[cut].port)
        assert wait_for(lambda: all(knows(each, 4) for each in [client, *cluster.clients]))
        client.execute_command("CLUSTER REPLICATE", its_id)
        assert wait_for(lambda: client.info("replication").get("master_link_status") == "up")
        others = [each for each in [client, *cluster.clients] if each is not old]
        for other in others:
            old.execute_command("CLUSTER FORGET", other.execute_command("CLUSTER MYID"))
        client.execute_command("CLUSTER FAILOVER", "TAKEOVER")
        assert wait_for(lambda: all(owner(other, slots_of(cut)[0]) == replica.port for other in others))


def owner(client: Any, slot: int) -> int:
    """Returns the port of the slot's owner, according to this server."""
    shards = client.execute_command("CLUSTER SLOTS")
    return next(int(primary[1]) for first, last, primary, *_ in shards if first <= slot <= last)


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["records", "the versions"])
def test_a_primary_that_was_cut_off_is_not_asked(tmp_path: Path, what: str) -> None:
    """This is true for a gate in use, and for one that is opened later and connects to that primary first."""
    with cluster_running() as cluster, running(Redis(*CLUSTER_NODE)) as replica:
        cut = shard_of(VERSIONS_RECORD) if what == "the versions" else (shard_of(VERSIONS_RECORD) + 1) % 3

        async def in_use(gate: Gate) -> None:
            for shard in range(3):
                await ask(gate, key_on(shard), PLENTY)
            replaced(cluster, cut, replica)
            for shard in range(3):
                assert await answers_again(gate, key_on(shard))

        async def later(gate: Gate) -> None:
            for shard in range(3):
                assert await answers_again(gate, key_on(shard))

        GatePlace(tmp_path, cluster.url()).use(in_use, REFUSE)
        cut_off_first = [*cluster.nodes[cut:], *cluster.nodes[:cut]]
        GatePlace(tmp_path, cluster_url(cut_off_first)).use(later, REFUSE)


@pytest.mark.thorough
def test_a_shard_that_takes_no_writes_is_down_until_it_does(
    redis_cluster: RedisCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis pauses writes like this during a manual failover. The shard still answers PING."""
    paused = (shard_of(VERSIONS_RECORD) + 1) % 3
    client = redis_cluster.clients[paused]

    def connections() -> int:
        """Returns the number of connections so far. After a timeout, a probe closes its connection."""
        return int(client.info("stats")["total_connections_received"])

    async def work(gate: Gate) -> None:
        for shard in range(3):
            await ask(gate, key_on(shard), PLENTY)
        before = connections()
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            async with asyncio.timeout(30):
                while connections() < before + 4:
                    with contextlib.suppress(Unavailable):
                        await ask(gate, key_on(paused), PLENTY)
                    await ask(gate, key_on(shard_of(VERSIONS_RECORD)), PLENTY)
        finally:
            client.execute_command("CLIENT", "UNPAUSE")
        assert await answers_again(gate, key_on(paused))

    GatePlace(tmp_path, redis_cluster.url()).use(work, REFUSE)
    assert [record.message for record in caplog.records] == ["shard down", "shard back"]


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["a record", "the versions"])
def test_a_slot_that_moves_twice_is_followed(tmp_path: Path, what: str) -> None:
    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        assert (await ask(gate, "key_0", Limits(9, 9))).remaining == 8
        cluster.begin_move(slot, name, first, second)
        cluster.end_move([slot], second)
        cluster.begin_move(slot, name, second, third)
        after = await gate.keys_version("live")
        assert (after > version) == (what == "the versions")  # the new owner might not have the latest versions
        assert (await ask(gate, "key_0", Limits(9, 9))).remaining == 7

    name = key_record("key_0") if what == "a record" else VERSIONS_RECORD
    slot = key_slot(name.encode())
    first, second, third = ((shard_of(name) + step) % 3 for step in range(3))
    with cluster_running() as cluster:
        GatePlace(tmp_path, cluster.url()).use(work, REFUSE)
