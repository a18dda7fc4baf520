"""Latency under a fixed rate: petstore and Go, both at half of what Go can serve at most, in alternating rounds.

The load is open (rate/main.go): requests are due at fixed moments and latency counts from those, so that what piles up
behind a stall is charged to the server. wrk, which waits for answers before it asks again, would leave that out.
"""

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import report
from contenders import CONTENDERS, ready_go
from load import run_wrk
from running import BENCH, BUILD, Running, run, started

ANIMALS = 100_000


def at_rate(running: Running, rate: float, seconds: float) -> dict[str, float]:
    command = [str(BUILD / "rate"), "-address", f"127.0.0.1:{running.port}", "-key", running.keys[0]]
    told: dict[str, float] = json.loads(run([*command, "-rate", f"{rate:.0f}", "-seconds", f"{seconds}"]))
    if told["failed"]:
        raise SystemExit(f"THE RUN IS VOID. {running.name}: {told['failed']:.0f} answers were not 200")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="length of one round (default 5)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each (default 5)")
    parser.add_argument("--out", type=Path, default=BENCH / "results/latency.json", help="the file to write")
    options = parser.parse_args()
    ready_go()
    run(["go", "build", "-o", str(BUILD / "rate"), str(BENCH / "rate/main.go")], GO111MODULE="off", GOFLAGS="")
    taken: dict[str, list[dict[str, float]]] = {"petstore": [], "go": []}
    with ExitStack() as stack:
        field = [stack.enter_context(started(CONTENDERS[name], ANIMALS)) for name in taken]
        peak = statistics.median(
            run_wrk(field[1], "list", seconds=3, animals=ANIMALS, tag="peak").per_second for _ in range(3)
        )
        rate = peak / 2
        print(f"Go's peak is {peak:,.0f}/s; both at {rate:,.0f}/s", file=sys.stderr)
        for number in range(options.rounds):
            for running in field if number % 2 else field[::-1]:
                taken[running.name].append(at_rate(running, rate, options.seconds))
    medians = {
        name: {figure: round(statistics.median(each[figure] for each in rounds), 3) for figure in rounds[0]}
        for name, rounds in taken.items()
    }
    kept: dict[str, Any] = {"machine": report.machine(), "go_peak": round(peak), "rate": round(rate)}
    kept |= {"medians": medians, "rounds": taken}
    options.out.write_text(json.dumps(kept, indent=2) + "\n")
    print(f"{'':10} {'rate':>8} {'p50 ms':>8} {'p90 ms':>8} {'p99 ms':>8} {'p99.9 ms':>9}")
    for name, m in medians.items():
        print(f"{name:10} {m['per_second']:8,.0f} {m['p50']:8.2f} {m['p90']:8.2f} {m['p99']:8.2f} {m['p999']:9.2f}")
    print(f"petstore's p99 is {medians['petstore']['p99'] / medians['go']['p99']:.2f} of Go's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
