"""A clock for tests of clients with real servers, on which the clients and the service skip long waits."""

import contextlib
import fcntl
import threading
import time
from pathlib import Path

SKIPPED = 0.2  # seconds. Shorter sleeps are not skipped, because they poll for responses that arrive in real time


class FastTime:
    """A clock shared by the threads, tasks and processes of a test: the machine's clock plus the seconds in a file.

    It jumps to the end of each long wait. If the file is a service's `--clock-file`, the service's clock jumps too.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = threading.local()

    def clock(self) -> float:
        self._seen.now = time.monotonic() + self._ahead()
        now: float = self._seen.now
        return now

    def sleep(self, seconds: float) -> None:
        self.sleep_until(self.end_of(seconds), seconds)

    def end_of(self, seconds: float) -> float:
        """Returns when a sleep that the calling thread begins now will end.

        Counts from when the thread last read the clock, because another thread may have made it jump since then.
        """
        end: float = self._seen.now + seconds
        return end

    def sleep_until(self, until: float, seconds: float) -> None:
        time.sleep(min(seconds, 0.01))  # gives the other workers time to reach their waits
        if seconds >= SKIPPED:
            with self._file.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._jump(until - self.clock())

    def _jump(self, left: float) -> None:
        if left > 0:
            part = self._file.with_suffix(".part")
            part.write_text(str(self._ahead() + left))
            part.replace(self._file)

    def _ahead(self) -> float:
        with contextlib.suppress(FileNotFoundError):  # nobody has waited yet
            return float(self._file.read_text())
        return 0.0
