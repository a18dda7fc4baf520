"""Measures the cost of a request in a cluster: CPU time and operations of the node, of Redis and of PostgreSQL.

CPU time hardly depends on other load on the machine, so these figures are more portable than requests per second. Also
measures the memory of a worker, and the size of an animal, an idempotency key and an API key in the store and in Redis.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import backends
import report
from contenders import CONTENDERS
from load import ROWS, run_wrk
from redis import Redis as RedisClient
from running import BENCH, BUILD, Running, processor_seconds, started
from seed import fill

from petstore.gate.redis_script import KEY_LIVE, VERSION_NUMBER, ScriptCall, key_record
from petstore.gate.redis_url import open_link
from petstore.rate_limits import BanPolicy
from petstore.settings import Settings

ANIMALS = 100_000
KEYS = 100_000


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one request, in microseconds of CPU time and in operations."""

    requests_per_second: float
    node_us: float
    redis_us: float
    postgres_us: float
    redis_steps: float
    postgres_commits: float
    postgres_rows_read: float


@dataclass(frozen=True, slots=True)
class Reading:
    node: float
    redis: float
    postgres: float
    steps: int
    commits: int
    rows: int


def read(node: Running) -> Reading:
    redis, postgres = backends.redis(), backends.postgres()
    assert redis.process is not None and postgres.process is not None
    client = RedisClient(port=redis.port)
    steps = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    client.close()
    (row,) = postgres.execute(
        "SELECT sum(xact_commit)::bigint AS commits, sum(tup_returned)::bigint AS rows FROM pg_stat_database"
        " WHERE datname LIKE 'petstore%'"
    )
    return Reading(
        node.processor_seconds(),
        processor_seconds(redis.process.pid),
        processor_seconds(postgres.process.pid),
        steps,
        row["commits"],
        row["rows"],
    )


def measure(node: Running, row: str, seconds: float) -> Cost:
    run_wrk(node, row, seconds=1, animals=ANIMALS, tag=f"{row} warm up")
    before = read(node)
    sample = run_wrk(node, row, seconds=seconds, animals=ANIMALS, tag=row)
    after = read(node)
    each = sample.requests / 1e6
    return Cost(
        round(sample.per_second),
        round((after.node - before.node) / each, 1),
        round((after.redis - before.redis) / each, 1),
        round((after.postgres - before.postgres) / each, 1),
        round((after.steps - before.steps) / sample.requests, 3),
        round((after.commits - before.commits) / sample.requests, 3),
        round((after.rows - before.rows) / sample.requests, 2),
    )


def memory_of(node: Running) -> dict[str, float]:
    """Returns the MiB of the main process and of its worker. As a worst case, shared memory counts for both."""
    main = node.process.pid
    (worker,) = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    return {"main_process_mib": resident(main), "worker_mib": resident(int(worker))}


def resident(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return round(int(line.split()[1]) / 1024, 1)


def bytes_in_postgres(table: str) -> float:
    """Returns the bytes per row of a table in the live environment, including its indexes."""
    server = backends.postgres()
    (database,) = server.execute("SELECT datname FROM pg_database WHERE datname LIKE 'petstore%'")
    (found,) = server.execute(
        f"SELECT pg_total_relation_size('petstore_live.{table}') AS bytes, count(*) AS rows FROM petstore_live.{table}",
        server.url_of(database["datname"]),
    )
    return round(found["bytes"] / found["rows"], 1)


def bytes_in_sqlite() -> float:
    """Returns the bytes per animal, including indexes."""
    with tempfile.TemporaryDirectory(dir=BUILD) as name:
        data = Path(name) / "data"
        empty = Path(name) / "empty"
        asyncio.run(fill(Settings(data=empty), 0, [], "spent"))
        asyncio.run(fill(Settings(data=data), ANIMALS, [], "spent"))
        return round(((data / "live.db").stat().st_size - (empty / "live.db").stat().st_size) / ANIMALS, 1)


def redis_alone(step: int, steps: int) -> float:
    """Returns Redis' CPU time per request in microseconds. In this worst case, each request has a different key."""

    async def ask() -> None:
        link = open_link(backends.redis().url())
        version = (await link.run_script("", BanPolicy(), 0, []))[0][VERSION_NUMBER["live", "keys"]]
        unused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        for number in range(steps):
            keys = range(number * step % KEYS, number * step % KEYS + step)
            calls = [ScriptCall(key_record(f"key_{key:08}"), KEY_LIVE, version, 10**9, 10**9, unused) for key in keys]
            await link.run_script("", BanPolicy(), 0, calls)
        await link.close()

    server = backends.redis().process
    assert server is not None
    before = processor_seconds(server.pid)
    asyncio.run(ask())
    return round((processor_seconds(server.pid) - before) / (step * steps) * 1e6, 2)


def bytes_in_redis() -> int:
    """Returns the bytes of one API key's record, including its name."""
    client = RedisClient(port=backends.redis().port)
    used: int = client.memory_usage(next(client.scan_iter(f"{key_record('')[:-2]}*")))
    client.close()
    return used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5, help="length of one run (default 5)")
    parser.add_argument("--rows", default="list,get,create,mix", help=f"rows to run, out of {','.join(ROWS)}")
    parser.add_argument("--out", type=Path, default=BENCH / "results/scaling.json", help="the file to write")
    options = parser.parse_args()
    try:
        with started(CONTENDERS["petstore-cluster"], ANIMALS) as node:
            costs = {row: measure(node, row, options.seconds) for row in options.rows.split(",")}
            memory = memory_of(node)
        takes = {
            "animal_in_sqlite": bytes_in_sqlite(),
            "animal_in_postgresql": bytes_in_postgres("pets"),
            "idempotency_key_in_postgresql": bytes_in_postgres("idempotency"),
        }
        takes["api_key_in_redis"] = bytes_in_redis()
        alone = {step: redis_alone(step, 200_000 // step) for step in (1, 8, 64)}
    finally:
        backends.end()
    kept: dict[str, Any] = {"machine": report.machine(), "costs": {row: asdict(cost) for row, cost in costs.items()}}
    kept["redis_us_by_requests_in_a_step"] = alone
    kept |= {"memory": memory, "bytes": takes, "finished": time.strftime("%Y-%m-%d", time.gmtime())}
    options.out.write_text(json.dumps(kept, indent=2) + "\n")
    print(f"{'row':8} {'req/s':>8} {'node µs':>8} {'redis µs':>9} {'postgres µs':>12} {'steps':>7} {'commits':>8}")
    for row, cost in costs.items():
        print(
            f"{row:8} {cost.requests_per_second:8,.0f} {cost.node_us:8} {cost.redis_us:9} {cost.postgres_us:12}"
            f" {cost.redis_steps:7} {cost.postgres_commits:8}"
        )
    for step, cost_of_one in alone.items():
        print(f"Redis alone, each request with a different key, {step:3} per step: {cost_of_one} µs each")
    for what, figure in (*memory.items(), *takes.items()):
        print(f"{what}: {figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
