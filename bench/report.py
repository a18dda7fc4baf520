"""The report: medians over the rounds, the table to print, the file to keep, and the machine it was measured on."""

import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import plot
from contenders import BUILD, CONTENDERS, VENV
from load import ROWS, Sample


@dataclass(frozen=True, slots=True)
class Result:
    """One contender in one row."""

    rounds: Sequence[Sample]

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
    """The contender that the others are compared with."""
    return next(iter(row))


def ratio(row: Mapping[str, Result], peer: str) -> float:
    """How many times as many requests the first contender served as this one did."""
    return row[first_of(row)].per_second / row[peer].per_second


def table(results: Results) -> str:
    heading = ("first/peer", "row", "contender", "requests/s", "slowest-fastest round", "p50 ms", "p99 ms")
    lines: list[tuple[str, ...]] = [heading]
    for row, contenders in results.items():
        for name, result in contenders.items():
            times = ratio(contenders, name)
            rates = sorted(sample.per_second for sample in result.rounds)
            lines.append(
                (
                    "-" if name == first_of(contenders) else f"{times:.2f}x",
                    row,
                    name,
                    f"{result.per_second:,.0f}",
                    f"{rates[0]:,.0f}-{rates[-1]:,.0f}",
                    f"{result.p50:.2f}",
                    f"{result.p99:.2f}",
                )
            )
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    left = {1, 2}
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
        "ratios": {
            row: {name: round(ratio(got, name), 2) for name in got if name != first_of(got)}
            for row, got in results.items()
        },
        "rows": {
            row: {
                "about": ROWS[row].about,
                "connections": ROWS[row].connections,
                "contenders": {
                    name: {
                        "requests_per_second": round(result.per_second),
                        "p50_ms": round(result.p50, 3),
                        "p99_ms": round(result.p99, 3),
                        "rounds": [asdict(sample) for sample in result.rounds],
                    }
                    for name, result in got.items()
                },
            }
            for row, got in results.items()
        },
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept, indent=2) + "\n")


def draw(file: Path, results: Results) -> None:
    rates = {row: {name: result.per_second for name, result in got.items()} for row, got in results.items()}
    about = {name: CONTENDERS[name].about for row in results.values() for name in row}
    plot.bars(file, f"Requests a second, the same work on {os.cpu_count()} cores", rates, about)


def machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "cpu": cpu_model(),
        "kernel": platform.release(),
        "durable_write_us": durable_write(),
        "python": platform.python_version(),
        "wrk": first_line("wrk", "-v"),
        "go": first_line("go", "version"),
        **{name: version(name) for name in ("granian", "apsw", "lmdb", "asyncpg", "redis")},
        **peer_versions("fastapi", "sqlalchemy", "limits", "uvicorn"),
    }


def cpu_model() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def durable_write() -> float:
    """Microseconds that a synced write of 4 KiB takes on the disk of the race: one by one, creates can be no faster."""
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
    # They live in another environment: read its metadata, do not import it.
    places = [str(place) for place in VENV.glob("lib/python*/site-packages")]
    found = {d.name.lower(): d.version for d in metadata.distributions(path=places)}
    return {package: found.get(package) for package in packages}
