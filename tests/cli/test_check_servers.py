"""`petstore check` on PostgreSQL and Redis. It finds faults and never hangs."""

import asyncio
import re
import signal
import time
from pathlib import Path

import asyncpg
import pytest

from harness.backends import Postgres, Redis, running, shared
from harness.commands import Commands
from harness.redis_topologies import RedisCluster
from harness.servers import Server
from harness.stores import GatePlace
from petstore.gate.doctor import check_gate_file, check_redis
from petstore.store.postgres.doctor import check_server
from petstore.store.schema import NEWEST_SCHEMA
from tests.findings import faults


def cluster(tmp_path: Path) -> Commands:
    server = Server(tmp_path / "data", "cluster")
    server.fill(1)
    return Commands(server)


def test_a_database_that_could_lose_animals_is_found(tmp_path: Path) -> None:
    """The test server's only fault is that it runs with fsync = off."""
    found = faults(cluster(tmp_path))
    assert set(found) == {"postgresql"}
    assert found["postgresql"] == ["PostgreSQL runs with fsync = off: animals can be lost in a power cut"]


def test_a_missing_schema_is_found_and_not_created(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "cluster")
    server.data.mkdir(mode=0o700)
    found = faults(Commands(server))
    assert {"store, live", "store, staging"} <= set(found)
    made = shared(Postgres).execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'petstore%'", server.store)
    assert made == []


def test_a_sequence_that_is_behind_is_found(tmp_path: Path) -> None:
    commands = cluster(tmp_path)
    shared(Postgres).execute(
        "INSERT INTO petstore_live.pets (id, name, category_id, status, added_at) VALUES (100, 'Mia', 1, 'sold', 1)",
        commands.server.store,
    )
    assert "assigned twice" in faults(commands)["store, live"][0]


def test_too_many_connections_are_found(tmp_path: Path) -> None:
    commands = cluster(tmp_path)
    (row,) = shared(Postgres).execute(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
    )
    most = int(row[0])
    assert not any("connections" in fault for fault in faults(commands, workers=most, postgres_pool=1)["postgresql"])
    found = faults(commands, workers=1, postgres_pool=most + 1)["postgresql"]
    assert any(f"{most + 1} connections" in fault and f"accepts only {most}" in fault for fault in found)


def test_a_newer_schema_of_postgresql_is_reported(tmp_path: Path) -> None:
    commands = cluster(tmp_path)

    def about() -> str:
        return asyncio.run(check_server(str(commands.server.store), 1)).about["live"]

    assert about() == f"schema {NEWEST_SCHEMA}"
    shared(Postgres).execute("UPDATE petstore_live.format SET version = 1000", commands.server.store)
    assert "newer" in faults(commands)["store, live"][0]


def test_a_replica_is_found() -> None:
    with running(Postgres()) as server:
        server.stop()
        (server.directory / "data/standby.signal").touch()
        server.start()
        found = asyncio.run(check_server(server.url_of("postgres"), 1))
        assert any("is a replica" in fault for fault in found.server)


def test_of_several_hosts_the_primary_is_examined(postgres: Postgres) -> None:
    with running(Postgres()) as replica:
        replica.stop()
        (replica.directory / "data/standby.signal").touch()
        replica.start()
        url = postgres.url().replace("127.0.0.1:", f"127.0.0.1:1,127.0.0.1:{replica.port},127.0.0.1:", 1)
        found = asyncio.run(check_server(url, 1))
        assert not any("is a replica" in fault for fault in found.server)


def test_a_locked_table_is_a_fault_and_not_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("petstore.store.postgres.doctor.STATEMENT_TIMEOUT", 0.2)
    commands = cluster(tmp_path)
    with shared(Postgres).transaction(str(commands.server.store)) as execute:
        execute("LOCK TABLE petstore_live.pets IN ACCESS EXCLUSIVE MODE")
        assert faults(commands)["postgresql"] == [f"{commands.server.store} does not respond: timed out"]


@pytest.mark.parametrize("url", ["postgresql://petstore:s3cret/more@127.0.0.1/x", "postgresql://a:s3cret@[1/x"])
def test_a_password_that_breaks_its_url_is_not_printed(tmp_path: Path, url: str) -> None:
    server = Server(tmp_path / "data")
    server.data.mkdir(mode=0o700)
    (fault,) = faults(Commands(server), store=url)["postgresql"]
    assert "--store" in fault and "s3cret" not in fault


def test_check_leaves_no_connection_open(postgres: Postgres) -> None:
    url = postgres.url()
    here = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"

    async def look() -> None:
        other = await asyncpg.connect(url)
        await check_server(url, 1)
        async with asyncio.timeout(10):  # the server needs a moment to notice the disconnect
            while await other.fetchval(here) > 1:
                await asyncio.sleep(0.01)
        await other.close()

    asyncio.run(look())


def test_servers_that_do_not_answer_are_found(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.data.mkdir(mode=0o700)
    found = faults(Commands(server), store="postgresql://127.0.0.1:1/x", gate="redis://127.0.0.1:1")
    assert set(found) == {"postgresql", "gate"}


def test_the_gate_is_described_in_a_few_words(redis: Redis, redis_cluster: RedisCluster, tmp_path: Path) -> None:
    path = tmp_path / "gate.mdb"
    faults, about, _ = check_gate_file(path, in_use=False)
    assert faults == [] and "no file yet" in about
    GatePlace(tmp_path).use(lambda gate: gate.keys_version("live"))
    assert check_gate_file(path, in_use=False) == ([], "16 MiB", 0.0)
    path.write_bytes(b"no gate" * 1000)
    (fault,), *_ = check_gate_file(path, in_use=False)
    assert "is damaged" in fault

    for url in (redis.url(), redis_cluster.url()):
        faults, about, ahead = asyncio.run(check_redis(url))
        assert faults == [] and re.fullmatch(r"Redis [0-9]+\.[0-9]+\.[0-9]+", about) and abs(ahead) < 1


def test_a_redis_without_persistence_is_found(tmp_path: Path) -> None:
    """The check also works without CONFIG, which many hosting providers disable."""
    forgetful = ("--appendonly", "no", "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")
    with running(Redis(*forgetful, "--rename-command", "CONFIG", "")) as redis:
        server = Server(tmp_path / "data")
        server.gate = redis.url()
        server.data.mkdir(mode=0o700)
        found = faults(Commands(server))
        assert [word for fault in found["gate"] for word in ("noeviction", "appendonly") if word in fault] == [
            "noeviction",
            "appendonly",
        ]


def test_clocks_that_differ_are_found(monkeypatch: pytest.MonkeyPatch, redis: Redis, tmp_path: Path) -> None:
    real = time.time
    monkeypatch.setattr("petstore.gate.doctor.time.time", lambda: real() + 60)
    server = Server(tmp_path / "data")
    server.data.mkdir(mode=0o700)
    (fault,) = faults(Commands(server), gate=redis.url())["clock"]
    assert "differ by 60 s" in fault


def test_a_server_that_hangs_is_a_fault_and_not_a_hang(tmp_path: Path) -> None:
    with running(Redis()) as redis:
        server = Server(tmp_path / "data")
        server.gate = redis.url()
        server.data.mkdir(mode=0o700)
        redis.signal(signal.SIGSTOP)
        assert set(faults(Commands(server))) == {"gate"}
        redis.signal(signal.SIGCONT)
