"""The supervisor: forks the workers, replaces those that die, and stops them all."""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

from petstore.observability.logs import event

STOP_SECONDS = 4.5
CRASH_SECONDS = 1.0  # a worker that dies sooner after its start did not really start
CRASHES_MAX = 5


def supervise(count: int, work: Callable[[], None]) -> None:
    """Keep `count` processes doing `work` until SIGTERM or SIGINT. Exits with 1 when they keep dying at the start."""
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for pid in list(born):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)

    def insist(number: int, frame: FrameType | None) -> None:
        for pid in list(born):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start() -> None:
        with _signals_held():  # until the new one is known: whoever is told to stop tells all
            if not stopping:
                born[_fork(work)] = time.monotonic()

    born: dict[int, float] = {}  # process id → when it started
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGALRM, insist)
    crashes = 0
    while not stopping and len(born) < count:
        start()
    while born:
        pid, status = os.wait()
        started = born.pop(pid, None)
        if started is None or stopping:
            continue
        crashes = crashes + 1 if time.monotonic() - started < CRASH_SECONDS else 0
        event(logging.ERROR, "worker died", worker=pid, status=os.waitstatus_to_exitcode(status))
        if crashes >= CRASHES_MAX:
            event(logging.ERROR, "workers keep dying", hint="the lines above say why")
            stop(0, None)
            crashes = -1
        else:
            start()
    signal.setitimer(signal.ITIMER_REAL, 0)
    if crashes < 0:
        sys.exit(1)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})


def _fork(work: Callable[[], None]) -> int:
    """With signals held: one that comes before the child has its own handlers must not run the supervisor's."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
            work()
            code = 0
        except BaseException:
            logging.getLogger("petstore").exception("worker failed")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return pid
