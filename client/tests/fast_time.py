"""A clock for tests of clients with real servers, on which the clients and the service skip long pauses."""

import asyncio
import contextlib
import fcntl
import threading
import time
from pathlib import Path

from petstore_client._shells import Time

SKIPPED = 0.2  # seconds; shorter pauses last as long as they should


class FastTime(Time):
    """A clock shared by the threads, tasks and processes of a test: the machine's clock plus the seconds in a file.

    It jumps to the end of each long pause. If the file is a service's `--clock-file`, the service's clock jumps too. A
    client uses it if its transport has it as its `time`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = threading.local()

    def clock(self) -> float:
        self._seen.now = time.monotonic() + self._ahead()
        now: float = self._seen.now
        return now

    def wall_clock(self) -> float:
        return time.time() + self._ahead()

    def block(self, event: threading.Event, seconds: float, *, is_pause: bool) -> None:
        if is_pause:
            self._skip(self._seen.now + seconds, seconds)
        else:
            super().block(event, seconds, is_pause=is_pause)

    async def suspend(self, future: asyncio.Future[None], seconds: float, *, is_pause: bool) -> None:
        if is_pause:
            await asyncio.to_thread(self._skip, self._seen.now + seconds, seconds)
        else:
            await super().suspend(future, seconds, is_pause=is_pause)

    def _skip(self, until: float, seconds: float) -> None:
        """Skips a pause. Its end is counted from when its thread last read the clock, which may have jumped since."""
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
