"""Runs several processes on one clock that skips the time in which all of them sleep."""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from petstore_client._retries import slot_of
from recording import Event

WORKER = Path(__file__).parent / "shared_key_worker.py"
MESSAGE_TIMEOUT = 60.0


class Result(NamedTuple):
    """What one process sent and received."""

    events: list[Event]
    codes: list[str | None]


class Coordinator:
    """Starts one `shared_key_worker.py` for each list of arguments, and runs them to their end.

    Process ids that differ by a multiple of `SLOTS` have the same time slot. A process with the slot of another one is
    replaced: four processes started together have such ids only if many others start between them.
    """

    def __init__(self, arguments: list[list[str]], move_server_clock: Callable[[float], None]) -> None:
        self._arguments = arguments
        self._move_server_clock = move_server_clock
        self._skipped = 0.0
        self._messages: queue.Queue[tuple[subprocess.Popen[str], dict[str, Any] | None]] = queue.Queue()
        self._running: set[subprocess.Popen[str]] = set()
        self._sleeping: dict[subprocess.Popen[str], float] = {}
        self._results: list[Result] = []

    def run(self) -> list[Result]:
        with contextlib.ExitStack() as stack:
            while len(self._running) < len(self._arguments):
                command = [sys.executable, str(WORKER), *self._arguments[len(self._running)]]
                pipe = subprocess.PIPE
                process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
                stack.callback(process.kill)
                if slot_of(process.pid, 0) not in {slot_of(other.pid, 0) for other in self._running}:
                    self._running.add(process)
            for process in self._running:
                threading.Thread(target=self._read, args=[process], daemon=True).start()
            while self._running:  # until all of them have started and sleep
                self._receive(MESSAGE_TIMEOUT)
            while self._sleeping or self._running:
                if not self._running:
                    self._skip_to(min(self._sleeping.values()))
                self._wake()
                next_wake = min(self._sleeping.values(), default=self._now() + MESSAGE_TIMEOUT)
                self._receive(max(next_wake - self._now(), 0.001), required=not self._sleeping)
        return self._results

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._messages.put((process, json.loads(line)))
        self._messages.put((process, None))

    def _receive(self, timeout: float, *, required: bool = True) -> None:
        try:
            process, message = self._messages.get(timeout=timeout)
        except queue.Empty:
            assert not required, "a process neither sleeps nor ends"
            return
        if message is None:
            self._running.discard(process)
        elif "sleep_until" in message:
            self._running.discard(process)
            self._sleeping[process] = message["sleep_until"]
        else:
            self._results.append(Result([Event(*event) for event in message["events"]], message["codes"]))

    def _now(self) -> float:
        return time.monotonic() + self._skipped

    def _skip_to(self, moment: float) -> None:
        self._skipped += max(moment - self._now(), 0.0)
        self._move_server_clock(self._skipped)

    def _wake(self) -> None:
        for process, until in list(self._sleeping.items()):
            if until <= self._now():
                del self._sleeping[process]
                self._running.add(process)
                assert process.stdin is not None
                process.stdin.write(f"{self._skipped}\n")
                process.stdin.flush()
