"""The load: the rows of the race and one run of wrk, whose every failed request is an error here."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("load.lua")


@dataclass(frozen=True, slots=True)
class Row:
    about: str
    path: str
    connections: int


ROWS = {
    "list": Row("GET /v1/pets, the first 20 animals", "/v1/pets", 32),
    "get": Row("GET /v1/pets/{id}, ids spread over all animals", "/v1/pets/1", 32),
    "create": Row("POST /v1/pets, each durable before its 201", "/v1/pets", 64),
    "mixed": Row("19 lists, then a create, and so on: every create makes the lists before it stale", "/v1/pets", 32),
}


class LoadFailed(Exception):
    """wrk did not run, or a request of it was not answered with success."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one contender; latencies in milliseconds."""

    per_second: float
    p50: float
    p99: float
    requests: int
    timeouts: int


def run_wrk(url: str, key: str, row: str, *, seconds: float, animals: int, tag: str) -> Sample:
    """Raises LoadFailed."""
    chosen = ROWS[row]
    # One thread for wrk: the cores are few, and it is not the one in the race. Ten seconds, so that a slow answer
    # counts as slow and not as a timeout.
    command = ["wrk", "-t1", f"-c{chosen.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
    command += ["-H", f"Authorization: Bearer {key}", "-s", str(SCRIPT), url + chosen.path]
    command += ["--", row, str(animals), tag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    return read_report(done.stdout, done.stderr)


def read_report(output: str, errors: str = "") -> Sample:
    """Raises LoadFailed."""
    line = next((line for line in output.splitlines() if line.startswith("RACE ")), None)
    if line is None:
        raise LoadFailed(f"wrk did not finish:\n{output}{errors}")
    report: dict[str, int] = json.loads(line.removeprefix("RACE "))
    # wrk's own line says the same as `status`; either alone is reason enough.
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    failed = max(report["status"], int(refused[1]) if refused else 0)
    if failed or report["socket"]:
        raise LoadFailed(f"{failed} answers were not 2xx or 3xx, {report['socket']} connections failed")
    if not report["requests"]:
        raise LoadFailed("not one request was answered")
    return Sample(
        per_second=report["requests"] / (report["microseconds"] / 1e6),
        p50=report["p50"] / 1000,
        p99=report["p99"] / 1000,
        requests=report["requests"],
        timeouts=report["timeout"],
    )
