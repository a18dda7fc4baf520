"""Valkey, a primary behind Sentinels, and invalid URLs. test_tls.py has the tests with TLS."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client

from harness.backends import Redis, running
from harness.gates import REFUSE, answers_again, ask
from harness.redis_topologies import RedisCluster, Sentinel
from harness.served import wait_for
from harness.stores import GatePlace
from petstore.errors import OperatorError, Unavailable
from petstore.gate import Gate, open_gate
from petstore.gate.redis_url import connection_options
from petstore.plans import Limits
from petstore.rate_limits import Decision


def test_valkey_urls_are_valid(redis: Redis, tmp_path: Path) -> None:
    url = redis.url().replace("redis://", "valkey://")
    assert GatePlace(tmp_path, url).use(lambda gate: ask(gate, "key_a", Limits(9, 9)), REFUSE).remaining == 8


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_sentinels_name_the_new_primary_after_a_failover(own_redis: Redis, tmp_path: Path, fault: str) -> None:
    with running(Redis("--replicaof", "127.0.0.1", str(own_redis.port))) as replica:
        with contextlib.closing(Client(port=replica.port)) as client:
            assert wait_for(lambda: client.info("replication")["master_link_status"] == "up")
        with running(Sentinel(own_redis.port)) as sentinel:
            with contextlib.closing(Client(port=sentinel.port)) as asked:
                known: Any = asked.sentinel_master
                assert wait_for(lambda: known("pets")["num-slaves"] == 1)

            async def work(gate: Gate) -> Decision:
                version = await gate.keys_version("live")
                assert (await ask(gate, "key_a", Limits(9, 9))).remaining == 8
                with contextlib.closing(Client(port=own_redis.port)) as client:
                    client.wait(1, 5_000)  # replication is asynchronous, and a failover loses other changes
                own_redis.kill() if fault == "killed" else own_redis.hang()
                assert await answers_again(gate)
                assert await gate.keys_version("live") > version  # so that no stale value is used
                return await ask(gate, "key_a", Limits(9, 9))

            assert GatePlace(tmp_path, sentinel.url()).use(work, REFUSE).remaining == 6


def test_a_sentinel_that_does_not_answer_leaves_time_for_the_next(own_redis: Redis, tmp_path: Path) -> None:
    with running(Sentinel(own_redis.port)) as first, running(Sentinel(own_redis.port)) as second:
        first.hang()
        url = f"redis+sentinel://127.0.0.1:{first.port},127.0.0.1:{second.port}/pets"
        assert GatePlace(tmp_path, url).use(lambda gate: gate.keys_version("live"), REFUSE) > 0


def test_the_error_names_why_no_sentinel_reports_a_primary_but_no_password(own_redis: Redis, tmp_path: Path) -> None:
    async def fails(url: str) -> str:
        gate = open_gate(url, tmp_path, REFUSE)
        with pytest.raises(Unavailable, match="no Sentinel reports a working primary") as failure:
            await gate.keys_version("live")
        await gate.close()
        return str(failure.value)

    down = asyncio.run(fails("redis+sentinel://ada:s3cret@127.0.0.1:1/pets?sentinel_username=a&sentinel_password=s3cr"))
    assert "127.0.0.1:1" in down and "s3cr" not in down
    with running(Sentinel(own_redis.port)) as sentinel:
        assert "its name is wrong" in asyncio.run(fails(f"redis+sentinel://127.0.0.1:{sentinel.port}/cats"))


def test_an_idle_connection_that_the_server_closed_is_no_outage(
    redis: Redis, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    async def work(gate: Gate) -> None:
        for _ in range(3):
            version = await gate.keys_version("live")
            assert await gate.keys_version("live") == version
            for port in ports:
                with contextlib.closing(Client(port=port)) as client:
                    client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.05)  # until the event loop notices
            await gate.windows(["key_a"])  # connects again, but runs no script
            assert await gate.keys_version("live") > version  # this might be another server, so all versions are raised

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
        "redis://127.0.0.1/name",
        "memcached://x",
        "redis://:s3cr/et@127.0.0.1:1/0",
        "redis://:77/s3cret@127.0.0.1:1/0",
        "rediss+sentinel://:s3cr?et@127.0.0.1:1/pets",
        "ada:s3cret@127.0.0.1",
    ],
)
def test_an_invalid_url_is_refused_in_one_line(tmp_path: Path, url: str) -> None:
    async def work() -> None:
        open_gate(url, tmp_path, REFUSE)

    with pytest.raises(OperatorError, match="--gate") as refused:
        asyncio.run(work())
    assert not [part for part in ("\n", "s3cr", "cret", "et@") if part in str(refused.value)]


@pytest.mark.parametrize("scheme", ["valkey", "redis"])
def test_a_valkey_url_differs_in_its_scheme_only(scheme: str) -> None:
    options = connection_options(f"{scheme}://:valkey-secret@valkey:6379/7")
    assert (options["host"], options["password"], options["db"]) == ("valkey", "valkey-secret", 7)
