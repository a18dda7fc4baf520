"""The race: petstore and its peers do the same work on one machine in one run. See README.md in this directory."""

import argparse
import shutil
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import backends
import probes
import report
from contenders import CONTENDERS
from load import ROWS, LoadFailed, Sample, run_wrk
from running import BENCH, Broken, Missing, Running, started


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float
    rounds: int
    animals: int
    rows: list[str]
    contenders: list[str]
    out: Path


def read_options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5, help="length of one run (default 5, at most 60)")
    parser.add_argument("--rounds", type=int, default=3, help="runs per contender and row (default 3, at most 20)")
    parser.add_argument("--animals", type=int, default=1_000_000, help="animals at the start (default 1000000)")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"rows to run, out of {','.join(ROWS)} (default all)")
    parser.add_argument(
        "--contenders",
        default="petstore,petstore-1,go,fastapi,nginx",
        help=f"contenders, out of {','.join(CONTENDERS)} (the others are compared with the first)",
    )
    parser.add_argument("--out", type=Path, default=BENCH / "results/race.json", help="the file to write")
    given = parser.parse_args()
    rows, contenders = unique(given.rows), unique(given.contenders)
    for name, known in [(row, ROWS) for row in rows] + [(name, CONTENDERS) for name in contenders]:
        if name not in known:
            parser.error(f"unknown: {name!r}; choose from {', '.join(known)}")
    if not (1 <= given.seconds <= 60 and 1 <= given.rounds <= 20 and 100 <= given.animals <= 10_000_000):
        parser.error("--seconds 1 to 60, --rounds 1 to 20, --animals 100 to 10000000")
    return Options(given.seconds, given.rounds, given.animals, rows, contenders, given.out)


def unique(names: str) -> list[str]:
    return list(dict.fromkeys(names.split(",")))


def main() -> int:
    options = read_options()
    if shutil.which("wrk") is None:
        say("Cannot race: wrk, which creates the load, is not installed (Debian: wrk).")
        return 1
    # On SIGTERM, stop everything that the race has started.
    signal.signal(signal.SIGTERM, stop)
    try:
        with ExitStack() as stack:
            field, skipped = line_up(options, stack)
            if not field:
                say("Cannot race: no contender could start.")
                return 1
            results = race(options, field)
    except (Broken, LoadFailed, probes.NotTheSame) as error:
        say(f"\nTHE RACE IS VOID. {error}")
        return 1
    except KeyboardInterrupt:
        say("\nStopped the race and all contenders.")
        return 130
    finally:
        backends.end()
    settings = {"seconds": options.seconds, "rounds": options.rounds, "animals": options.animals}
    report.write(options.out, results, skipped, settings)
    report.draw(options.out.with_suffix(".svg"), results)
    print(f"\n{report.table(results)}\n\nMedians of {options.rounds} rounds; details in {options.out}")
    for name, why in skipped.items():
        print(f"SKIPPED {name}: {why}")
    return 0


def line_up(options: Options, stack: ExitStack) -> tuple[list[Running], dict[str, str]]:
    """Starts the contenders and checks that they do the same work. Raises Broken and NotTheSame."""
    field: list[Running] = []
    skipped: dict[str, str] = {}
    for name in options.contenders:
        contender = CONTENDERS[name]
        say(f"{name}: {contender.about}")
        try:
            contender.make_ready()
        except Missing as missing:
            skipped[name] = str(missing)
            say(f"  SKIPPED: {missing}")
            continue
        running = stack.enter_context(started(contender, options.animals))
        if not contender.serves:
            probes.check(running, options.animals)
        field.append(running)
    return field, skipped


def race(options: Options, everyone: list[Running]) -> report.Results:
    """Runs all rows with all contenders. Raises LoadFailed."""
    results: dict[str, dict[str, report.Result]] = {}
    for row in options.rows:
        say(f"\n{row}: {ROWS[row].about}")
        field = [running for running in everyone if row in (running.contender.serves or ROWS)]
        for running in field:
            one_run(options, running, row, "warm up", seconds=1)
        samples: dict[str, list[Sample]] = {running.name: [] for running in field}
        for number in range(options.rounds):
            # Each round starts with a different contender, so that other load on the machine affects them all equally.
            shift = number % len(field)
            for running in field[shift:] + field[:shift]:
                sample = one_run(options, running, row, f"round {number + 1}", seconds=options.seconds)
                samples[running.name].append(sample)
                say(
                    f"  round {number + 1}  {running.name:16} {sample.processor_us:7.1f} µs"
                    f" {sample.per_second:10,.0f}/s  p99 {sample.p99:8.2f} ms"
                )
        results[row] = {name: report.Result(taken) for name, taken in samples.items()}
    return results


def one_run(options: Options, running: Running, row: str, tag: str, *, seconds: float) -> Sample:
    """Runs one row with one contender. Raises LoadFailed."""
    try:
        return run_wrk(running, row, seconds=seconds, animals=options.animals, tag=f"{row} {tag}")
    except LoadFailed as failed:
        raise LoadFailed(f"{running.name}, {row}, {tag}: {failed}\n{running.last_words()}") from failed


def stop(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def say(line: str) -> None:
    """Prints progress to stderr. Only the table goes to stdout."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
