"""One worker process: what it does, how the main process sees that it is ready, and how it ends."""

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
