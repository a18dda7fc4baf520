"""Reports the medians of all rounds as a table and as a file, with a description of the machine."""

import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import plot
from contenders import CONTENDERS, CORES, VENV
from load import ROWS, Sample
from running import BUILD


@dataclass(frozen=True, slots=True)
class Result:
    """All rounds of one contender in one row."""

    rounds: Sequence[Sample]

    @property
    def processor_us(self) -> float:
        return statistics.median(sample.processor_us for sample in self.rounds)

    @property
    def per_second(self) -> float:
        return statistics.median(sample.per_second for sample in self.rounds)

    @property
    def p50(self) -> float:
        return statistics.median(sample.p50 for sample in self.rounds)

    @property
    def p99(self) -> float:
        return statistics.median(sample.p99 for sample in self.rounds)


Results = Mapping[str, Mapping[str, Result]]  # row, contender


def first_of(row: Mapping[str, Result]) -> str:
    """Returns the contender that the others are compared with."""
    return next(iter(row))


def processor_ratio(row: Mapping[str, Result], peer: str) -> float:
    """Returns the ratio of this contender's CPU time per request to that of the first contender."""
    return row[peer].processor_us / row[first_of(row)].processor_us


def rate_ratio(row: Mapping[str, Result], peer: str) -> float:
    """Returns the ratio of the first contender's requests per second to those of this one."""
    return row[first_of(row)].per_second / row[peer].per_second


HEADING = (
    "row", "contender", "µs/request", "peer/first", "requests/s", "first/peer", "slowest-fastest round", "p50 ms",
    "p99 ms",
)  # fmt: skip


def table(results: Results) -> str:
    lines: list[tuple[str, ...]] = [HEADING]
    for row, contenders in results.items():
        for name, result in contenders.items():
            is_first = name == first_of(contenders)
            rates = sorted(sample.per_second for sample in result.rounds)
            lines.append(
                (
                    row,
                    name,
                    f"{result.processor_us:.1f}",
                    "-" if is_first else f"{processor_ratio(contenders, name):.2f}x",
                    f"{result.per_second:,.0f}",
                    "-" if is_first else f"{rate_ratio(contenders, name):.2f}x",
                    f"{rates[0]:,.0f}-{rates[-1]:,.0f}",
                    f"{result.p50:.2f}",
                    f"{result.p99:.2f}",
                )
            )
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADING))]
    left = {0, 1}
    shown = [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    shown.insert(1, "-" * len(shown[0]))
    return "\n".join(shown)


def write(file: Path, results: Results, skipped: Mapping[str, str], settings: Mapping[str, object]) -> None:
    kept = {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "settings": dict(settings),
        "contenders": {name: CONTENDERS[name].about for row in results.values() for name in row},
        "skipped": dict(skipped),
        "processor_time_peer_to_first": ratios(results, processor_ratio),
        "rate_first_to_peer": ratios(results, rate_ratio),
        "rows": {
            row: {
                "about": ROWS[row].about,
                "connections": ROWS[row].connections,
                "contenders": {
                    name: {
                        "processor_us_per_request": round(result.processor_us, 1),
                        "requests_per_second": round(result.per_second),
                        "p50_ms": round(result.p50, 3),
                        "p99_ms": round(result.p99, 3),
                    }
                    for name, result in got.items()
                },
            }
            for row, got in results.items()
        },
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept, indent=2) + "\n")


def ratios(results: Results, ratio: Callable[[Mapping[str, Result], str], float]) -> dict[str, dict[str, float]]:
    return {
        row: {name: round(ratio(got, name), 2) for name in got if name != first_of(got)} for row, got in results.items()
    }


PLOTTED = ("list", "create", "mix")  # the rows of the plot; figures.md has all of them


def draw(file: Path, results: Results) -> None:
    """Plots the CPU time of the rows in PLOTTED, or of all rows if none of those was run."""
    results = {row: results[row] for row in PLOTTED if row in results} or results
    times = {row: {name: result.processor_us for name, result in got.items()} for row, got in results.items()}
    labels = {row: {name: label(got, name) for name in got} for row, got in results.items()}
    notes = {row: ROWS[row].about for row in results}
    notes |= {name: CONTENDERS[name].about for row in results.values() for name in row}
    title = f"CPU time per request in µs for the same work on {CORES} cores (shorter is better)"
    plot.bars(file, title, times, labels, notes)


def label(row: Mapping[str, Result], name: str) -> str:
    times = "" if name == first_of(row) else f" · {processor_ratio(row, name):.2f}× {first_of(row)}"
    return f"{name} {row[name].processor_us:,.0f} µs{times} · {row[name].per_second:,.0f}/s"


def machine() -> dict[str, object]:
    return {
        "cores": CORES,
        "cpu": cpu_model(),
        "kernel": platform.release(),
        "durable_write_us": durable_write(),
        "python": platform.python_version(),
        "wrk": first_line("wrk", "-v"),
        "go": first_line("go", "version"),
        **{name: version(name) for name in ("uvloop", "httptools", "apsw", "lmdb", "asyncpg", "redis")},
        **peer_versions("fastapi", "sqlalchemy", "limits", "uvicorn", "granian"),
    }


def cpu_model() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def durable_write() -> float:
    """Returns the microseconds for a synced write of 4 KiB on the same disk, which bounds a single create request."""
    file = BUILD / "synced"
    times = []
    with file.open("wb", buffering=0) as output:
        for _ in range(50):
            begun = time.perf_counter()
            output.write(bytes(4096))
            os.fdatasync(output.fileno())
            times.append(time.perf_counter() - begun)
    file.unlink()
    return round(statistics.median(times) * 1e6, 1)


def first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except OSError:
        return None
    return (done.stdout or done.stderr).partition("\n")[0].strip() or None


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def peer_versions(*packages: str) -> dict[str, str | None]:
    # The packages are in a different environment, so read their metadata without importing them.
    places = [str(place) for place in VENV.glob("lib/python*/site-packages")]
    found = {d.name.lower(): d.version for d in metadata.distributions(path=places)}
    return {package: found.get(package) for package in packages}
