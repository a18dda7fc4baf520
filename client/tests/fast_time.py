"""Time for clients of real servers: short sleeps are slept, long waits are skipped, by client and service alike."""

import threading
import time

from tests.servers import Server

SKIPPED = 0.2  # seconds: shorter sleeps are polls for the responses to other requests, which come in real time


class FastTime:
    """A clock that all threads or tasks of a test share. It jumps to the end of each long wait."""

    def __init__(self, server: Server | None = None) -> None:
        """The clock of the server, if one is given, jumps too."""
        self._server = server
        self._lock = threading.Lock()
        self._ahead = 0.0

    def clock(self) -> float:
        return time.monotonic() + self._ahead

    def sleep(self, seconds: float) -> None:
        until = self.clock() + seconds
        time.sleep(min(seconds, 0.01))  # so that the other workers reach their waits too
        while seconds >= SKIPPED and (left := until - self.clock()) > 0:
            self._jump(until, left)

    def _jump(self, until: float, left: float) -> None:
        with self._lock:
            if self.clock() < until:
                # The server first: no client may be ahead of it.
                if self._server is not None:
                    self._server.move_clock(self._ahead + left)
                self._ahead += left
