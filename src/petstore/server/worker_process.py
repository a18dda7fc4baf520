"""One worker process: what it does, how the main process sees that it is ready, its end, when the next one starts."""

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
RETIRE = signal.SIGUSR1  # tells a worker to finish what it has, without hurry
COVER = signal.SIGUSR2  # tells a worker to accept at the sockets of the others too, for a while

CRASHES_MAX = 5
PAUSE_MIN, PAUSE_MAX = 0.1, 30.0  # seconds

# What a worker does. It is given its own sockets, those of other workers, for the time when one of them cannot be
# replaced, and what to call when it accepts connections.
Work = Callable[[Sockets, Sockets, Callable[[], None]], None]


class Worker:
    def __init__(self, pid: int, slot: int, ready_pipe: int | None) -> None:
        """Without a `ready_pipe`: a worker of the predecessor, which has been ready for long."""
        self.pid = pid
        self.slot = slot  # the index of its sockets
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
    """A worker process, from the fork to its end. Does not return."""

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
    """When a worker that died is started again: at once, or after a pause that grows while its start fails.

    A slot is the place of one worker. `now` is in seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self.due: dict[int, float] = {}  # slots without a worker, and when each gets its next one
        self._crashes_of: dict[int, int] = {}  # of each slot, in a row
        self._crashes = 0  # of all slots, since a worker died that had really started

    def worked(self, slot: int) -> None:
        """A worker died that had really started."""
        self._crashes = 0
        self._crashes_of.pop(slot, None)

    def crashed(self, slot: int, now: float) -> float:
        """A worker did not really start. Returns the seconds until its slot gets the next one."""
        self._crashes += 1
        crashes = self._crashes_of[slot] = self._crashes_of.get(slot, 0) + 1
        pause = min(PAUSE_MAX, PAUSE_MIN * 2.0 ** min(crashes - 1, 16))
        self.due[slot] = now + pause
        return pause

    @property
    def keep_failing(self) -> bool:
        return self._crashes >= CRASHES_MAX

    def take_due(self, now: float) -> list[int]:
        """The slots that get a worker now."""
        due = [slot for slot, at in self.due.items() if at <= now]
        for slot in due:
            del self.due[slot]
        return due

    def seconds_to_next(self, now: float) -> float:
        """Infinite when no slot waits."""
        return max(0.0, min(self.due.values(), default=math.inf) - now)
