"""Time for clients of real servers: short naps are slept, long waits are jumped over, for client and service alike."""

import threading
import time

from tests.servers import Server

JUMPED = 0.2  # seconds: shorter waits are for other requests' answers, which come in real time


class HurriedTime:
    """A clock that all threads or tasks of a test share. What is waited for has passed as soon as someone waits."""

    def __init__(self, server: Server | None = None) -> None:
        """The server's clock, if it is given, jumps along."""
        self._server = server
        self._lock = threading.Lock()
        self._ahead = 0.0

    def clock(self) -> float:
        return time.monotonic() + self._ahead

    def sleep(self, seconds: float) -> None:
        until = self.clock() + seconds
        time.sleep(min(seconds, 0.01))  # the others' turn to come and wait too; the rest of it is jumped over
        while seconds >= JUMPED and (left := until - self.clock()) > 0:
            self._jump(until, left)

    def _jump(self, until: float, left: float) -> None:
        with self._lock:
            if self.clock() < until:
                # The service first: nobody here may believe in a time that it has not reached.
                if self._server is not None:
                    self._server.move_clock(self._ahead + left)
                self._ahead += left
