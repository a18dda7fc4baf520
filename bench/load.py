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

from contenders import Running

SCRIPT = Path(__file__).with_name("load.lua")


@dataclass(frozen=True, slots=True)
class Row:
    about: str
    path: str
    connections: int
    key: str = "key"  # which of a contender's keys is sent
    refused: bool = False  # every answer must be an error, instead of none


ROWS = {
    "list": Row("GET /v1/pets, the first 20 animals", "/v1/pets", 32),
    "cursors": Row("GET /v1/pets?cursor=…, 100,000 pages spread over all animals", "/v1/pets", 32),
    "get": Row("GET /v1/pets/{id}, ids spread over all animals", "/v1/pets/1", 32),
    "create": Row("POST /v1/pets, each durable before its 201", "/v1/pets", 64),
    "mixed": Row("nine lists, then a create, and so on: every create makes the lists before it stale", "/v1/pets", 32),
    "refused": Row("GET /v1/pets with a key that is over its limit: 429", "/v1/pets", 32, "spent_key", refused=True),
    "unauthorised": Row("GET /v1/pets with a key that does not exist: 401", "/v1/pets", 32, "", refused=True),
}
KEYS = Row("GET /v1/pets, each request with the next of all keys (growth alone)", "/v1/pets", 32)
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

    per_second: float
    p50: float
    p99: float
    requests: int
    timeouts: int


def run_wrk(running: Running, row: str, *, seconds: float, animals: int, tag: str) -> Sample:
    """Raises LoadFailed."""
    chosen = ROWS.get(row, KEYS)
    key = getattr(running, chosen.key) if chosen.key else f"{running.key}x"
    places = running.log.with_name("keys" if row == "keys" else "cursors")
    if row == "cursors" and not places.exists():
        places.write_text("\n".join(cursors(animals, running.contender.cursor_salt)) + "\n")
    # One thread for wrk: the cores are few, and it is not the one in the race. Ten seconds, so that a slow answer
    # counts as slow and not as a timeout.
    command = ["wrk", "-t1", f"-c{chosen.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
    command += ["-H", f"Authorization: Bearer {key}", "-s", str(SCRIPT), running.url + chosen.path]
    command += ["--", row, str(animals), tag, str(places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    return read_report(done.stdout, done.stderr, refused=chosen.refused)


def read_report(output: str, errors: str = "", *, refused: bool = False) -> Sample:
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
        per_second=report["requests"] / (report["microseconds"] / 1e6),
        p50=report["p50"] / 1000,
        p99=report["p99"] / 1000,
        requests=report["requests"],
        timeouts=report["timeout"],
    )
