"""Measures how the number of animals or keys affects the requests per second of one worker.

Run `.venv/bin/python bench/growth.py [animals] [keys] [--seconds 3] [--highest 10000000]`. Measures both by default.
"""

import argparse
import asyncio
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import plot
import report
import seed
from contenders import CONTENDERS, launch_petstore
from load import run_wrk
from running import BENCH, BUILD, Launch, Running, started

from petstore.backends import Backends
from petstore.keys import mint
from petstore.settings import Settings

ROUNDS = 3
ANIMALS = [1_000, 10_000, 100_000, 1_000_000, 10_000_000]
KEYS = [10, 100, 1_000, 10_000, 100_000, 1_000_000]
ROWS = {"animals": ["list", "cursors", "get", "create"], "keys": ["same", "list", "create"]}
Growth = dict[str, list[tuple[float, float]]]


def grow(what: str, sizes: list[int], seconds: float) -> Growth:
    grown: Growth = {row: [] for row in ROWS[what]}
    for size in sizes:
        with with_animals(size) if what == "animals" else with_keys(size) as running:
            for row in grown:
                animals = size if what == "animals" else ANIMALS[0]
                tags = [f"{row} {size} {number}" for number in range(ROUNDS)]
                run_wrk(running, row, seconds=1, animals=animals, tag="warm up")
                taken = [run_wrk(running, row, seconds=seconds, animals=animals, tag=tag) for tag in tags]
                rate = statistics.median(sample.per_second for sample in taken)
                grown[row].append((size, round(rate)))
                first = grown[row][0][1]
                print(f"{size:>10,} {what}  {row:8} {rate / first:5.2f}x  {rate:10,.0f}/s", flush=True)
    return grown


def with_animals(count: int) -> Any:
    return started(CONTENDERS["petstore-1"], count)


@contextmanager
def with_keys(count: int) -> Iterator[Running]:
    """Starts a contender with `count` keys. Requests use all of them, except in the row `same`."""
    secrets = [mint("live") for _ in range(count)]

    def launch(directory: Path, port: int, animals: int) -> Launch:
        made = launch_petstore(directory, port, animals, workers=1)
        asyncio.run(add_keys(Settings(data=directory / "data"), secrets))
        return replace(made, keys=secrets)

    with started(replace(CONTENDERS["petstore-1"], launch=launch), ANIMALS[0]) as running:
        yield running


async def add_keys(settings: Settings, secrets: list[str]) -> None:
    async with Backends(settings) as backends:
        await seed.add_keys(backends.stores["live"], secrets, seed.UNLIMITED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", metavar="what", help="animals, keys or both (default both)")
    parser.add_argument("--seconds", type=int, default=3, help="length of one run (default 3)")
    parser.add_argument("--highest", type=int, default=ANIMALS[-1], help="stop at this size (default 10000000)")
    parser.add_argument("--out", type=Path, default=BENCH / "results", help="the directory to write to")
    given = parser.parse_args()
    if unknown := set(given.what) - set(ROWS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(ROWS)}")
    BUILD.mkdir(exist_ok=True)
    for what in given.what or ROWS:
        sizes = [size for size in {"animals": ANIMALS, "keys": KEYS}[what] if size <= given.highest]
        grown = grow(what, sizes, given.seconds)
        kept = {"machine": report.machine(), "rounds": ROUNDS, "seconds": given.seconds, "rates": grown}
        (given.out / f"growth-{what}.json").write_text(json.dumps(kept, indent=2) + "\n")
        plot.lines(given.out / f"growth-{what}.svg", f"Requests per second of one worker, by {what}", what, grown)


if __name__ == "__main__":
    main()
