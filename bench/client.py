"""The cost of the Python client: each operation against bare httpx with the same requests, and the time of the import.

Run as `.venv/bin/python bench/client.py`. Calls of the two alternate; the result is the ratio of the medians.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from claims import fill, make_keys, serving

from petstore_client import LIVE, AsyncPetstore, Petstore

BASE = LIVE.replace("8080", "8765")
TIMEOUT = httpx.Timeout(30, connect=5)
NEW = {"name": "Rex", "categoryId": 1}
Call = Callable[[], object]
AsyncCall = Callable[[], Awaitable[object]]


class Samples(NamedTuple):
    """Seconds of each call."""

    bare: list[float]
    ours: list[float]


def bare_headers(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}", "Accept": "application/json"}


def with_idempotency_key(headers: dict[str, str]) -> dict[str, str]:
    return headers | {"Idempotency-Key": os.urandom(16).hex()}


def measure_sync(secret: str, calls: int) -> dict[str, Any]:
    headers = bare_headers(secret)
    with httpx.Client(timeout=TIMEOUT) as bare, Petstore(secret, base_url=BASE) as ours:
        pairs: dict[str, tuple[Call, Call]] = {
            "list": (
                lambda: bare.get(f"{BASE}/pets?limit=20", headers=headers).json(),
                lambda: next(ours.list_pets(limit=20).pages()),
            ),
            "get": (lambda: bare.get(f"{BASE}/pets/1", headers=headers).json(), lambda: ours.get_pet(1)),
            "create": (
                lambda: bare.post(f"{BASE}/pets", headers=with_idempotency_key(headers), json=NEW).json(),
                lambda: ours.create_pet("Rex", 1),
            ),
        }
        results = {}
        for name, pair in pairs.items():
            taken, used = Samples([], []), Samples([], [])
            for which in alternating(calls):
                began, cpu = time.perf_counter(), time.process_time()
                pair[which]()
                taken[which].append(time.perf_counter() - began)
                used[which].append(time.process_time() - cpu)
            results[name] = compared(taken, used)
        return results


async def measure_async(secret: str, calls: int) -> dict[str, Any]:
    headers = bare_headers(secret)
    async with httpx.AsyncClient(timeout=TIMEOUT) as bare, AsyncPetstore(secret, base_url=BASE) as ours:

        async def bare_list() -> Any:
            return (await bare.get(f"{BASE}/pets?limit=20", headers=headers)).json()

        async def bare_get() -> Any:
            return (await bare.get(f"{BASE}/pets/1", headers=headers)).json()

        async def bare_create() -> Any:
            return (await bare.post(f"{BASE}/pets", headers=with_idempotency_key(headers), json=NEW)).json()

        pairs: dict[str, tuple[AsyncCall, AsyncCall]] = {
            "list": (bare_list, lambda: anext(ours.list_pets(limit=20).pages())),
            "get": (bare_get, lambda: ours.get_pet(1)),
            "create": (bare_create, lambda: ours.create_pet("Rex", 1)),
        }
        results = {}
        for name, pair in pairs.items():
            taken, used = Samples([], []), Samples([], [])
            for which in alternating(calls):
                began, cpu = time.perf_counter(), time.process_time()
                await pair[which]()
                taken[which].append(time.perf_counter() - began)
                used[which].append(time.process_time() - cpu)
            results[name] = compared(taken, used)
        return results


def alternating(calls: int) -> Iterator[int]:
    """0 for bare, 1 for ours, alternating: so other load on the machine slows both alike."""
    for number in range(calls):
        yield from ((0, 1) if number % 2 else (1, 0))


def compared(taken: Samples, used: Samples) -> dict[str, Any]:
    """The medians, the range of the ratio over ten parts of the run, and the ratio of the CPU time of this process.

    Other load on the machine disturbs the CPU time least.
    """
    part = len(taken.bare) // 10
    ratios = [
        statistics.median(taken.ours[first : first + part]) / statistics.median(taken.bare[first : first + part])
        for first in range(0, part * 10, part)
    ]
    bare, ours = statistics.median(taken.bare), statistics.median(taken.ours)
    return {
        "bare_us": round(bare * 1e6, 1),
        "ours_us": round(ours * 1e6, 1),
        "ratio": round(ours / bare, 3),
        "ratio_of_parts": [round(min(ratios), 3), round(max(ratios), 3)],
        "cpu_ratio": round(statistics.median(used.ours) / statistics.median(used.bare), 3),
    }


def imports(rounds: int) -> dict[str, Any]:
    """Seconds to import, each time in a new process."""
    scripts = {
        "import petstore_client": "from petstore_client import Petstore, AsyncPetstore",
        "import httpx": "import httpx",
        "import petstore_client, make a client": "from petstore_client import Petstore; Petstore('k')",
    }
    timed = "import time; a, b = time.perf_counter(), time.process_time(); {}; print({}, {})"
    taken: dict[str, list[list[float]]] = {name: [] for name in scripts}
    for _ in range(rounds):
        for name, script in scripts.items():
            code = timed.format(script, "time.perf_counter() - a", "time.process_time() - b")
            taken[name].append([float(word) for word in subprocess.check_output([sys.executable, "-c", code]).split()])
    return {
        name: {
            "median_s": round(statistics.median(passed for passed, _ in both), 3),
            "slowest_s": round(max(passed for passed, _ in both), 3),
            "cpu_s": round(statistics.median(used for _, used in both), 3),
        }
        for name, both in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3000, help="of each kind")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # get_pet is deprecated, and is measured too
    with tempfile.TemporaryDirectory() as folder:
        (secret,) = asyncio.run(make_keys(Path(folder), 1))
        asyncio.run(fill(Path(folder), 1_000))
        with serving(Path(folder)):
            results = {
                "threads": measure_sync(secret, options.calls),
                "asyncio": asyncio.run(measure_async(secret, options.calls)),
                "imports": imports(15),
                "machine": {"cores": os.cpu_count(), "load": [round(load, 1) for load in os.getloadavg()]},
            }
    for kind in ("threads", "asyncio"):
        for name, row in results[kind].items():
            low, high = row["ratio_of_parts"]
            print(
                f"{kind:<8} {name:<7} bare {row['bare_us']:7.1f} µs   ours {row['ours_us']:7.1f} µs   "
                f"{row['ratio']:.3f}x (in ten parts: {low:.3f} to {high:.3f}), CPU {row['cpu_ratio']:.3f}x"
            )
    for name, row in results["imports"].items():
        print(f"{name:<38} {row['median_s']:.3f} s (slowest of 15: {row['slowest_s']:.3f} s), CPU {row['cpu_s']:.3f} s")
    print(f"{results['machine']['cores']} cores; load over the last 1, 5 and 15 minutes: {results['machine']['load']}")
    saved = Path(__file__).parent / "results" / "client.json"
    saved.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
