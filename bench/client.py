"""Measures what a create costs the process of a client, next to httpx2 without a client library.

Run `.venv/bin/python bench/client.py`. All creates are gathered at once, against one worker of the service.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import report
from contenders import CONTENDERS
from running import BENCH, BUILD, Broken, clean_environment, started

from petstore_client import AsyncPetstore

CALLS = [500, 1_000, 10_000]
ROUNDS = 3
TIMEOUT = 120.0  # seconds for one run, after which it counts as not finished


async def with_petstore_client(url: str, secret: str, calls: int) -> None:
    async with AsyncPetstore(secret, base_url=url, total_timeout=None) as store:
        await asyncio.gather(*(store.create_pet(f"Pet {number}", 1) for number in range(calls)))


async def with_httpx2(url: str, secret: str, calls: int) -> None:
    """As many connections as httpx2 opens by default, and all other requests waiting for one."""
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=None) as client:
        await asyncio.gather(*(_create(client, url, number) for number in range(calls)))


async def with_httpx2_and_a_semaphore(url: str, secret: str, calls: int) -> None:
    """What a careful caller writes: at most 20 requests at a time."""
    turns = asyncio.Semaphore(20)
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=None) as client:

        async def create(number: int) -> None:
            async with turns:
                await _create(client, url, number)

        await asyncio.gather(*(create(number) for number in range(calls)))


async def _create(client: httpx2.AsyncClient, url: str, number: int) -> None:
    body = {"name": f"Pet {number}", "categoryId": 1}
    response = await client.post(f"{url}/pets", json=body, headers={"Idempotency-Key": os.urandom(16).hex()})
    assert response.status_code == httpx2.codes.CREATED, response.text
    response.json()


WAYS: dict[str, Callable[[str, str, int], Awaitable[None]]] = {
    "petstore_client": with_petstore_client,
    "httpx2": with_httpx2,
    "httpx2 with a semaphore of 20": with_httpx2_and_a_semaphore,
}
Figures = dict[str, float]


def run_here(way: str, url: str, calls: int) -> None:
    """Runs in a separate process, and prints the figures as JSON."""
    began, before = time.monotonic(), time.process_time()
    asyncio.run(_coroutine(way, url, calls))
    spent = time.process_time() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_ms": 1000 * spent / calls, "mib": memory, "seconds": time.monotonic() - began}))


async def _coroutine(way: str, url: str, calls: int) -> None:
    await WAYS[way](url, os.environ["PETSTORE_API_KEY"], calls)


def run_apart(way: str, url: str, secret: str, calls: int) -> Figures | None:
    """Returns the figures of one run, or None if it did not finish."""
    command = [sys.executable, __file__, "--way", way, "--url", url, "--calls", str(calls)]
    environment = clean_environment() | {"PETSTORE_API_KEY": secret}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise Broken(done.stderr[-2000:])
    figures: Figures = json.loads(done.stdout)
    return figures


def compare(calls: list[int], rounds: int) -> dict[str, dict[str, Figures]]:
    """Lets the ways take turns, so that a busy moment of the machine affects all of them."""
    measured: dict[str, dict[str, Figures]] = {}
    with started(CONTENDERS["petstore-1"], 1_000) as service:
        for count in calls:
            runs: dict[str, list[Figures]] = {way: [] for way in WAYS}
            for number in range(rounds):
                for way in [*list(WAYS)[number % len(WAYS) :], *list(WAYS)[: number % len(WAYS)]]:
                    figures = run_apart(way, f"{service.url}/v1", service.keys[0], count)
                    if figures is not None:
                        runs[way].append(figures)
            measured[str(count)] = {way: _medians(each) for way, each in runs.items() if each}
            for way, figures in measured[str(count)].items():
                print(f"{count:>7,} creates  {way:<30} {figures}", flush=True)
    return measured


def _medians(runs: list[Figures]) -> Figures:
    return {what: round(statistics.median(run[what] for run in runs), 2) for what in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default=",".join(map(str, CALLS)), help="numbers of creates, separated by commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=BENCH / "results/client.json")
    for hidden in ("--way", "--url", "--calls"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        run_here(given.way, given.url, int(given.calls))
        return
    BUILD.mkdir(exist_ok=True)
    measured = compare([int(count) for count in given.counts.split(",")], given.rounds)
    kept = {"machine": report.machine(), "rounds": given.rounds, "creates": measured}
    given.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
