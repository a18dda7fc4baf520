"""Defers Ctrl-Z while this process holds a lock for which the service or other commands wait.

A stopped process keeps its locks. Stop signals stop all threads of a process, so this module handles them for the whole
process. SIGSTOP, which `kill -STOP` sends, cannot be handled.
"""

import signal
import threading
from types import FrameType, TracebackType

_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class _Unstoppable:
    """A context manager, for any thread. A stop signal takes effect when no thread is in such a block."""

    def __init__(self) -> None:
        # Reentrant, because Python calls signal handlers in the main thread, which may hold the lock.
        self._lock = threading.RLock()
        self._blocks = 0
        self._deferred: int | None = None  # the latest signal that was deferred

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._blocks -= 1
            deferred = None if self._blocks else self._deferred
        if deferred is not None:
            signal.pthread_kill(threading.main_thread().ident or 0, deferred)

    def stop(self, number: int, _: FrameType | None) -> None:
        """Stops the process, or defers the signal. Handles stop signals."""
        with self._lock:  # no thread can begin a block while the process is stopped
            if self._blocks:
                self._deferred = number
                return
            self._deferred = None
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)  # returns when the process continues
            signal.signal(number, self.stop)


unstoppable = _Unstoppable()


def defer_stops() -> None:
    """Makes stop signals wait for `unstoppable` blocks. Signals that this process ignores remain ignored.

    Must be called in the main thread.
    """
    for number in _STOPS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, unstoppable.stop)
