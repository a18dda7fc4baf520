"""The load: the rows of the race, and a run of wrk. A failed request makes the run fail."""

import base64
import json
import random
import re
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from running import Running, keys_file, write_lines

SCRIPT = Path(__file__).with_name("load.lua")


@dataclass(frozen=True, slots=True)
class Row:
    about: str
    connections: int = 32
    keys: Literal["all", "spent", "unknown"] = "all"  # the keys to send; all except "all" cause only errors


ROWS = {
    "list": Row("GET /v1/pets, 20 animals; no parameter, limit, status, or both in either order"),
    "get": Row("GET /v1/pets/{id}, ids spread over all animals"),
    "create": Row("POST /v1/pets with a new Idempotency-Key, each durable before its 201", 64),
    "mix": Row("70% list, 20% get, 10% create"),
    "cursors": Row("GET /v1/pets?cursor=…, 100,000 pages spread over all animals"),
    "refused": Row("GET /v1/pets with a key that is over its limit: 429", keys="spent"),
    "unauthorised": Row("GET /v1/pets with a key that does not exist: 401", keys="unknown"),
    "same": Row("for reference: GET /v1/pets with one key and two header lines, all requests identical"),
}
CURSORS = 100_000


def cursors(animals: int, salt: bytes) -> list[str]:
    """Returns cursors for random positions in the list. The cursors of contenders differ only in their checksums."""
    dice = random.Random(1)
    positions = [struct.pack(">q", dice.randrange(animals)) for _ in range(CURSORS)]
    return [base64.urlsafe_b64encode(raw + struct.pack(">I", zlib.crc32(salt + raw))).decode() for raw in positions]


class LoadFailed(Exception):
    """Raised if wrk did not run, or if one of its requests failed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one contender. Latencies are in milliseconds."""

    processor_us: float  # microseconds of CPU time per request, of all processes of the contender
    per_second: float
    p50: float
    p99: float
    requests: int
    timeouts: int


def run_wrk(running: Running, row: str, *, seconds: float, animals: int, tag: str) -> Sample:
    """Runs wrk against a contender. Raises LoadFailed."""
    chosen = ROWS[row]
    # wrk uses one thread, because there are few cores. The timeout is ten seconds, so that slow responses do not count
    # as timeouts.
    command = ["wrk", "-t1", f"-c{chosen.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
    command += ["-H", f"Authorization: Bearer {running.keys[0]}", "-s", str(SCRIPT), f"{running.url}/v1/pets"]
    command += ["--", row, str(animals), tag, str(keys_to_send(running, chosen))]
    if row == "cursors":
        command.append(str(cursors_to_send(running, animals)))
    begun = running.processor_seconds()
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    used = running.processor_seconds() - begun
    return read_report(done.stdout, done.stderr, used, refused=chosen.keys != "all")


def keys_to_send(running: Running, row: Row) -> Path:
    if row.keys == "all":
        return keys_file(running.log.parent)
    file = running.log.with_name(f"{row.keys}-key")
    write_lines(file, [running.spent_key if row.keys == "spent" else f"{running.keys[0]}x"])
    return file


def cursors_to_send(running: Running, animals: int) -> Path:
    file = running.log.with_name("cursors")
    if not file.exists():
        write_lines(file, cursors(animals, running.contender.cursor_salt))
    return file


def read_report(output: str, errors: str, processor_seconds: float, *, refused: bool) -> Sample:
    """Parses the output of wrk. Raises LoadFailed."""
    line = next((line for line in output.splitlines() if line.startswith("RACE ")), None)
    if line is None:
        raise LoadFailed(f"wrk did not finish:\n{output}{errors}")
    report: dict[str, int] = json.loads(line.removeprefix("RACE "))
    # wrk's line and `status` count the same failures. Use the larger number.
    counted = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    failed = max(report["status"], int(counted[1]) if counted else 0)
    if refused and failed < report["requests"] - 1:  # the first request of the spent key succeeds
        raise LoadFailed(f"only {failed} of {report['requests']} requests were refused")
    if (failed and not refused) or report["socket"]:
        raise LoadFailed(f"{failed} responses were not 2xx or 3xx, and {report['socket']} connections failed")
    if not report["requests"]:
        raise LoadFailed("no request got a response")
    return Sample(
        processor_us=processor_seconds / report["requests"] * 1e6,
        per_second=report["requests"] / (report["microseconds"] / 1e6),
        p50=report["p50"] / 1000,
        p99=report["p99"] / 1000,
        requests=report["requests"],
        timeouts=report["timeout"],
    )
