"""The forms that Redis comes in: behind TLS, as Valkey, named by Sentinels; and URLs that name none."""

import asyncio
import contextlib
import gc
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client

from petstore.errors import OperatorError
from petstore.gate import Gate, open_gate
from petstore.gate.redis_cluster import ClusterLink
from petstore.gate.redis_link import SingleLink, open_link
from petstore.plans import Limits
from petstore.rate_limits import Decision
from tests.backends import Redis, running
from tests.places import GatePlace
from tests.redis_topologies import RedisCluster, Sentinel, behind_tls
from tests.served import wait_for
from tests.test_gate import ask
from tests.test_gate_redis import REFUSE, healed


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


def test_a_connection_that_was_closed_while_nobody_asked_is_no_outage(
    redis: Redis, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    async def work(gate: Gate) -> None:
        for _ in range(3):
            version = await gate.keys_version("live")
            assert await gate.keys_version("live") == version
            for port in ports:
                with contextlib.closing(Client(port=port)) as client:
                    client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.05)  # the loop hears of it
            await gate.windows(["key_a"])  # by a new connection, but nobody was told of it
            assert await gate.keys_version("live") > version  # perhaps it is another server: nothing counts any more

    ports = [redis.port, *(node.port for node in redis_cluster.nodes)]
    for url in (redis.url(), redis_cluster.url()):
        GatePlace(tmp_path, url).use(work, REFUSE)


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
