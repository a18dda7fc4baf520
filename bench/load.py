"""The load: the rows of the race and one run of wrk, whose every failed request is an error here."""

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
    keys: Literal["all", "spent", "unknown"] = "all"  # the keys to send; but for "all", each answer is an error


ROWS = {
    "list": Row("GET /v1/pets, 20 animals; no parameter, limit, status, or both in either order"),
    "get": Row("GET /v1/pets/{id}, ids spread over all animals"),
    "create": Row("POST /v1/pets with a new Idempotency-Key, each durable before its 201", 64),
    "mix": Row("70 % list, 20 % get, 10 % create"),
    "cursors": Row("GET /v1/pets?cursor=…, 100,000 pages spread over all animals"),
    "refused": Row("GET /v1/pets with a key that is over its limit: 429", keys="spent"),
    "unauthorised": Row("GET /v1/pets with a key that does not exist: 401", keys="unknown"),
    "same": Row("a footnote: GET /v1/pets with one key and two header lines, every request identical to the byte"),
}
CURSORS = 100_000


def cursors(animals: int, salt: bytes) -> list[str]:
    """Positions all over the list, the same for all; every contender writes them alike but for its checksum."""
    dice = random.Random(1)
    positions = [struct.pack(">q", dice.randrange(animals)) for _ in range(CURSORS)]
    return [base64.urlsafe_b64encode(raw + struct.pack(">I", zlib.crc32(salt + raw))).decode() for raw in positions]


class LoadFailed(Exception):
    """wrk did not run, or a request of it was not answered with success."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one contender; latencies in milliseconds."""

    processor_us: float  # microseconds of processor time per request, of all processes of the contender
    per_second: float
    p50: float
    p99: float
    requests: int
    timeouts: int


def run_wrk(running: Running, row: str, *, seconds: float, animals: int, tag: str) -> Sample:
    """Raises LoadFailed."""
    chosen = ROWS[row]
    # One thread for wrk: the cores are few, and it is not the one in the race. Ten seconds, so that a slow answer
    # counts as slow and not as a timeout.
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
    """Raises LoadFailed."""
    line = next((line for line in output.splitlines() if line.startswith("RACE ")), None)
    if line is None:
        raise LoadFailed(f"wrk did not finish:\n{output}{errors}")
    report: dict[str, int] = json.loads(line.removeprefix("RACE "))
    # wrk's own line says the same as `status`; either alone is reason enough.
    counted = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    failed = max(report["status"], int(counted[1]) if counted else 0)
    if refused and failed < report["requests"] - 1:  # a key with one request a day has one success
        raise LoadFailed(f"only {failed} of {report['requests']} answers were refusals")
    if (failed and not refused) or report["socket"]:
        raise LoadFailed(f"{failed} answers were not 2xx or 3xx, {report['socket']} connections failed")
    if not report["requests"]:
        raise LoadFailed("not one request was answered")
    return Sample(
        processor_us=processor_seconds / report["requests"] * 1e6,
        per_second=report["requests"] / (report["microseconds"] / 1e6),
        p50=report["p50"] / 1000,
        p99=report["p99"] / 1000,
        requests=report["requests"],
        timeouts=report["timeout"],
    )
