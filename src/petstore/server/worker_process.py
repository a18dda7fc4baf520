"""Runs a worker process, detects when it is ready, and decides when to restart it."""

import logging
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable

from petstore.errors import PetstoreError
from petstore.observability.logs import event
from petstore.server.sockets import Sockets

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
RETIRE = signal.SIGUSR1  # tells a worker to drain its connections for at most RETIRE_TIMEOUT seconds and then exit
COVER = signal.SIGUSR2  # tells a worker to temporarily accept connections on other workers' sockets

CRASHES_MAX = 5
PAUSE_MIN, PAUSE_MAX = 0.1, 30.0  # seconds

# A worker's main function. Its arguments are its own sockets, the other workers' sockets (for COVER), and a function to
# call once the worker accepts connections.
Work = Callable[[Sockets, Sockets, Callable[[], None]], None]


class Worker:
    def __init__(self, pid: int, slot: int, ready_pipe: int | None) -> None:
        """`ready_pipe` is None if the previous main process started the worker. Such a worker is already ready."""
        self.pid = pid
        self.slot = slot  # the index of the worker's sockets
        self.is_ready = ready_pipe is None
        self.started = -math.inf if ready_pipe is None else time.monotonic()
        self._ready_pipe = ready_pipe

    def check_ready(self) -> None:
        if self._ready_pipe is not None and select.select([self._ready_pipe], [], [], 0)[0]:
            self.is_ready = os.read(self._ready_pipe, 1) == b"1"
            self.close()

    def close(self) -> None:
        if self._ready_pipe is not None:
            os.close(self._ready_pipe)
            self._ready_pipe = None


def run_worker(work: Work, own: Sockets, others: Sockets, ready_pipe: int) -> None:
    """Runs the worker in the forked process. Does not return."""

    def ready() -> None:
        os.write(ready_pipe, b"1")
        os.close(ready_pipe)

    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, RETIRE, COVER):
            signal.signal(number, signal.SIG_IGN if number in (signal.SIGHUP, COVER) else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        work(own, others, ready)
        code = 0
    except PetstoreError as error:
        event(logging.ERROR, "worker failed", cause=str(error))
    except BaseException:
        logging.getLogger("petstore").exception("worker failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Restarts:
    """Decides when to restart a worker that died: immediately or, if it crashed on startup, with exponential backoff.

    Each worker has a slot, which its successor takes over. `now` is a time.monotonic() value.
    """

    def __init__(self) -> None:
        self.due: dict[int, float] = {}  # when to start a new worker in each empty slot
        self._crashes_of: dict[int, int] = {}  # consecutive crashes in each slot
        self._crashes = 0  # crashes since the last time a worker died after running for at least a second

    def worked(self, slot: int) -> None:
        """Called when a worker dies after running for at least a second."""
        self._crashes = 0
        self._crashes_of.pop(slot, None)

    def crashed(self, slot: int, now: float) -> float:
        """Called when a worker crashes on startup. Returns how many seconds to wait before the next start."""
        self._crashes += 1
        crashes = self._crashes_of[slot] = self._crashes_of.get(slot, 0) + 1
        pause = min(PAUSE_MAX, PAUSE_MIN * 2.0 ** min(crashes - 1, 16))
        self.due[slot] = now + pause
        return pause

    @property
    def keep_failing(self) -> bool:
        return self._crashes >= CRASHES_MAX

    def take_due(self, now: float) -> list[int]:
        """Returns the slots that need a worker now, and removes them from `due`."""
        due = [slot for slot, at in self.due.items() if at <= now]
        for slot in due:
            del self.due[slot]
        return due

    def seconds_to_next(self, now: float) -> float:
        """Returns the number of seconds until the next restart is due, or infinity if no restart is planned."""
        return max(0.0, min(self.due.values(), default=math.inf) - now)
