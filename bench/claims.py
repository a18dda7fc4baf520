"""The promises that are figures, measured on this machine: start, cost against size, memory over many keys.

Run as `.venv/bin/python bench/claims.py [start] [size] [memory]`; without words, all of them.
"""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from petstore.audit import AuditEntry
from petstore.backends import Backends
from petstore.keys import digest_of, mint, new_key
from petstore.pets import STATUSES
from petstore.plans import Limits
from petstore.settings import Settings
from petstore.store.schema import PETS

PETSTORE = [str(Path(sys.executable).with_name("petstore"))]
ENTRY = AuditEntry(0.0, "bench", "bench", "bench")
PLENTY = Limits(10**9, 10**9)
PORT = 8765


def start() -> None:
    """`petstore --help`, and `serve` until /readyz answers."""
    helps = [timed(lambda: subprocess.run([*PETSTORE, "--help"], capture_output=True, check=True)) for _ in range(9)]
    say("petstore --help", f"{statistics.median(helps):.2f} s (median of 9)")
    with tempfile.TemporaryDirectory() as folder:
        readies = []
        for _ in range(9):
            with serving(Path(folder)) as (_, ready):
                readies.append(ready)
    say("serve until ready", f"{statistics.median(readies):.2f} s (median of 9, the slowest {max(readies):.2f} s)")


def size() -> None:
    """The first and the last page of 1,000 and of 1,000,000 animals, read from the store without any cache."""
    costs: dict[tuple[int, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        folders = {count: Path(folder) / str(count) for count in (1_000, 1_000_000)}
        for count, data in folders.items():
            asyncio.run(fill(data, count))
        # Alternating, so that what else the machine does falls on all alike.
        samples: dict[tuple[int, str], list[float]] = {}
        for _ in range(9):
            for count, data in folders.items():
                for place, after in (("first", 0), ("last", count - 21)):
                    samples.setdefault((count, place), []).append(asyncio.run(page_cost(data, after)))
        costs = {name: statistics.median(values) for name, values in samples.items()}
    for place in ("first", "last"):
        small, large = costs[1_000, place], costs[1_000_000, place]
        say(f"{place} page", f"{small:.1f} µs of 1,000, {large:.1f} µs of 1,000,000 animals: {large / small:.2f}x")


def memory() -> None:
    """What a worker holds after a million requests over 10,000 keys."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        secrets = asyncio.run(make_keys(data, 10_000))
        asyncio.run(fill(data, 100_000))
        script = data / "keys.lua"
        script.write_text(LUA % ",".join(f'"{secret}"' for secret in secrets))
        with serving(data) as (supervisor, _):
            worker = int(subprocess.check_output(["pgrep", "-P", str(supervisor)]).split()[0])
            sent, held = 0, []
            while sent < 1_000_000:
                done = subprocess.run(
                    ["wrk", "-t1", "-c32", "-d10s", "-s", str(script), f"http://127.0.0.1:{PORT}/v1/pets"],
                    capture_output=True, text=True, check=True,
                ).stdout  # fmt: skip
                if "Non-2xx" in done:
                    raise SystemExit(done)
                sent += int(done.split(" requests in")[0].split()[-1])
                held.append((sent, resident(worker)))
    for count, mib in held:
        say(f"after {count:,} requests", f"{mib:.1f} MiB resident")


LUA = """local secrets = {%s}
local n = 0
function request()
  n = n %% #secrets + 1
  return wrk.format("GET", "/v1/pets?limit=" .. (n %% 100 + 1), {["Authorization"] = "Bearer " .. secrets[n]})
end
"""


@contextmanager
def serving(data: Path) -> Iterator[tuple[int, float]]:
    """The supervisor's process id, and the seconds until the service was ready."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [*PETSTORE, "serve", "--data", str(data), "--port", str(PORT), "--workers", "1"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.perf_counter() - began > 20:
                    raise SystemExit("petstore did not start") from None
                time.sleep(0.005)
        yield process.pid, time.perf_counter() - began
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=10)


async def fill(data: Path, count: int) -> None:
    async with Backends(Settings(data=data)) as backends:
        for first in range(0, count, 1000):
            rows = [(i + 1, f"Pet {i}", i % 50, STATUSES[i % 3], 0) for i in range(first, min(first + 1000, count))]
            await backends.stores["live"].transfer.put_rows(PETS, rows)


async def page_cost(data: Path, after: int) -> float:
    """Microseconds for one page of 20."""
    async with Backends(Settings(data=data)) as backends:
        store = backends.stores["live"]
        await store.pets.page(after=after, limit=20, status=None)
        began = time.perf_counter()
        for _ in range(2_000):
            await store.pets.page(after=after, limit=20, status=None)
        return (time.perf_counter() - began) / 2_000 * 1e6


async def make_keys(data: Path, count: int) -> list[str]:
    secrets = [mint("live") for _ in range(count)]
    async with Backends(Settings(data=data)) as backends:
        store = backends.stores["live"]
        keys = [new_key("live", "enterprise", now=time.time(), limits=PLENTY) for _ in secrets]
        await asyncio.gather(
            *(store.keys.add(key, digest_of(secret), ENTRY) for key, secret in zip(keys, secrets, strict=True))
        )
    return secrets


def resident(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


RESULTS: dict[str, str] = {}


def say(what: str, figure: str) -> None:
    RESULTS[what] = figure
    print(f"{what:<28} {figure}", flush=True)


if __name__ == "__main__":
    for word in sys.argv[1:] or ["start", "size", "memory"]:
        {"start": start, "size": size, "memory": memory}[word]()
    kept = Path(__file__).parent / "results/claims.json"
    earlier = json.loads(kept.read_text()) if kept.exists() else {}
    if "memory" in sys.argv or len(sys.argv) == 1:  # its lines have other names in every run
        earlier = {what: figure for what, figure in earlier.items() if not what.startswith("after ")}
    RESULTS = earlier | RESULTS
    kept.write_text(json.dumps(RESULTS, indent=2, ensure_ascii=False) + "\n")
