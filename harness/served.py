"""Runs `petstore serve` as operators do, and inspects the running service."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.servers import PETSTORE, READY_WITHIN, Server

SECRET = re.compile(r"pets_(?:live|test)_[0-9A-Za-z]{36}")


class Served(Server):
    """`petstore serve` with the machine's clock, and with separate files for its output and its log."""

    def __init__(self, data: Path, *options: str, workers: int = 1, scheme: str = "http") -> None:
        super().__init__(data, "own", *options, workers=workers)
        self.origin = f"{scheme}://127.0.0.1:{self.port}"
        self.output = data.parent / f"{data.name}.out"
        self.code: Path | None = None  # a directory with another copy of the package, to run instead

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables for the service and for commands on its data."""
        return {**os.environ, **self.where, **({"PYTHONPATH": str(self.code)} if self.code else {})}

    def start(self, *, wait: bool = True, log: int | None = None) -> "Served":
        """Starts the service. `log` is a file descriptor that replaces the log file."""
        command = [sys.executable, "-m", *self.program, "serve", "--data", str(self.data), "--port", str(self.port),
                   "--workers", str(self.workers), *self.options]  # fmt: skip
        with self.output.open("wb") as out, self.log.open("ab") as file:
            self.log_start = file.tell()
            self.process = subprocess.Popen(
                command, stdout=out, stderr=log or file, env=self.variables, start_new_session=True
            )
        if wait:
            self.wait_until_ready()
        return self

    @property
    def printed(self) -> str:
        return self.output.read_text()

    @property
    def events(self) -> list[dict[str, Any]]:
        complete = self.log.read_text().rpartition("\n")[0]  # the last line may be incomplete
        return [json.loads(line) for line in complete.splitlines()]


def wait_for(condition: Callable[[], object], seconds: float = READY_WITHIN) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)  # polls for at most `seconds`
    return True


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def serve_fails_in_one_line(options: list[str]) -> str:
    done = subprocess.run([*PETSTORE, "serve", *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("petstore: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr
