"""The forms that Redis comes in: behind TLS, as Valkey, named by Sentinels, a Cluster; and URLs that name none."""

import asyncio
import contextlib
import gc
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client
from redis.crc import key_slot

from petstore.errors import OperatorError, Unavailable
from petstore.gate import Gate, GatePolicy, open_gate
from petstore.gate.inspect import inspect_redis
from petstore.gate.redis import VERSIONS, name_of
from petstore.gate.redis_links import ClusterLink, SingleLink, open_link
from petstore.plans import Limits
from petstore.windows import Decision
from tests.backends import Redis, free_port, running
from tests.places import GatePlace
from tests.redis_topologies import SLOTS, RedisCluster, Sentinel, behind_tls, cluster_running
from tests.served import wait_for
from tests.test_gate import NOW, PLENTY, ask
from tests.test_gate_redis import REFUSE, healed

NAMES = [f"key_{number}" for number in range(20)]


def test_over_tls(redis: Redis, tmp_path: Path) -> None:
    with behind_tls(redis, tmp_path) as url:
        assert GatePlace(tmp_path, url).use(lambda gate: ask(gate, "key_tls", Limits(9, 9)), REFUSE).remaining == 8
        gc.collect()  # a connection that was not closed to the end would be complained about here, as an error


def test_valkey_urls_are_understood(redis: Redis, tmp_path: Path) -> None:
    url = redis.url().replace("redis://", "valkey://")
    assert GatePlace(tmp_path, url).use(lambda gate: ask(gate, "key_a", Limits(9, 9)), REFUSE).remaining == 8


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_sentinels_name_the_new_primary_after_a_failover(own_redis: Redis, tmp_path: Path, fault: str) -> None:
    with running(Redis("--replicaof", "127.0.0.1", str(own_redis.port))) as replica:
        with contextlib.closing(Client(port=replica.port)) as client:
            assert wait_for(lambda: client.info("replication")["master_link_status"] == "up")
        with running(Sentinel(own_redis)) as sentinel:
            with contextlib.closing(Client(port=sentinel.port)) as asked:
                known: Any = asked.sentinel_master
                assert wait_for(lambda: known("pets")["num-slaves"] == 1)

            async def work(gate: Gate) -> Decision:
                version = await gate.keys_version("live")
                assert (await ask(gate, "key_a", Limits(9, 9))).remaining == 8
                with contextlib.closing(Client(port=own_redis.port)) as client:
                    client.wait(1, 5_000)  # replication is asynchronous: what was not passed on would be lost
                own_redis.kill() if fault == "killed" else own_redis.hang()
                assert await healed(gate)
                assert await gate.keys_version("live") > version  # nothing that was read before counts any more
                return await ask(gate, "key_a", Limits(9, 9))

            assert GatePlace(tmp_path, sentinel.url()).use(work, REFUSE).remaining == 6


def test_a_sentinel_that_is_away_leaves_time_for_the_next(own_redis: Redis, tmp_path: Path) -> None:
    with running(Sentinel(own_redis)) as first, running(Sentinel(own_redis)) as second:
        first.hang()
        url = f"redis+sentinel://127.0.0.1:{first.port},127.0.0.1:{second.port}/pets"
        assert GatePlace(tmp_path, url).use(lambda gate: gate.keys_version("live"), REFUSE) > 0


def test_a_connection_that_was_closed_while_nobody_asked_is_no_outage(redis: Redis, tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        for _ in range(3):
            with contextlib.closing(Client(port=redis.port)) as client:
                client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.05)  # the loop hears of it
            assert await gate.keys_version("live") > version  # perhaps it is another server: nothing counts any more

    GatePlace(tmp_path, redis.url()).use(work, REFUSE)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://127.0.0.1:1",
        "redis+cluster://nowhere",
        "redis+cluster://:7000",
        "redis+cluster://a:7000,b:port",
        "redis://127.0.0.1:port/0",
        "memcached://x",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_in_one_line(tmp_path: Path, url: str) -> None:
    async def work() -> None:
        open_gate(url, tmp_path, REFUSE)

    with pytest.raises(OperatorError, match="--gate"):
        asyncio.run(work())


@pytest.mark.parametrize("scheme", ["valkey", "redis"])
def test_only_the_scheme_of_a_valkey_url_is_another(scheme: str) -> None:
    async def work() -> SingleLink | ClusterLink:
        return open_link(f"{scheme}://:valkey-secret@valkey:6379/7")

    link = asyncio.run(work())
    assert isinstance(link, SingleLink)
    options = link._options
    assert (options["host"], options["password"], options["db"]) == ("valkey", "valkey-secret", 7)


def test_a_cluster_that_cannot_be_reached_is_an_outage(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        with pytest.raises(Unavailable, match="cannot be connected"):
            await asyncio.wait_for(gate.keys_version("live"), 5)

    url = f"redis+cluster://127.0.0.1:{free_port()}"
    GatePlace(tmp_path, url).use(work, REFUSE)
    assert "does not answer" in asyncio.run(inspect_redis(url)).faults[0]


def test_shards_that_have_lost_the_script_get_it_again(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    async def work(gate: Gate) -> list[int]:
        await asyncio.gather(*(ask(gate, name, Limits(9, 9)) for name in NAMES))
        for client in redis_cluster.clients[1:]:
            client.script_flush()
        return [(await ask(gate, name, Limits(9, 9))).remaining for name in NAMES]

    assert GatePlace(tmp_path, redis_cluster.url()).use(work, REFUSE) == [7] * len(NAMES)


def test_what_is_remembered_comes_some_at_a_time(redis: Redis, redis_cluster: RedisCluster, tmp_path: Path) -> None:
    async def work(gate: Gate) -> list[str]:
        await asyncio.gather(*(ask(gate, name, PLENTY) for name in NAMES))
        (rows,) = [rows async for rows in gate.all_windows() if set(NAMES) & {name for name, _ in rows}]
        return [name for name, _ in rows]

    for url in (redis.url(), redis_cluster.url()):
        assert set(GatePlace(tmp_path, url).use(work, REFUSE)) >= set(NAMES)


def shard_of(name: str) -> int:
    return key_slot(name.encode()) * 3 // SLOTS


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


def test_a_shard_that_is_down_fails_whom_it_concerns(tmp_path: Path) -> None:
    with cluster_running() as cluster:
        shards = [shard_of(name_of(name)) for name in NAMES]
        away = (shard_of(VERSIONS) + 1) % 3

        async def work(gate: Gate) -> list[bool]:
            version = await gate.keys_version("live")
            cluster.nodes[away].kill()
            asked = [gate.admit("live", name, PLENTY, version, NOW) for name in NAMES]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(answer, Unavailable | tuple) for answer in answers), answers
            with pytest.raises(Unavailable):
                await gate.windows(NAMES)
            with pytest.raises(Unavailable):
                [rows async for rows in gate.all_windows()]
            return [isinstance(answer, Unavailable) for answer in answers]

        assert GatePlace(tmp_path, cluster.url()).use(work, REFUSE) == [shard == away for shard in shards]
