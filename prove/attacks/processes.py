"""Measures the resources that a process of the service uses."""

import contextlib
import time
from pathlib import Path

from harness.servers import Server

MEBIBYTE = 1024 * 1024


class Process:
    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def memory(self) -> int:
        """The resident memory of the process in bytes."""
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all threads of the process, from the kernel's clock for the process."""
        return time.clock_gettime((~self._pid << 3) | 2)

    @property
    def sockets(self) -> int:
        found = 0
        for descriptor in Path(f"/proc/{self._pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed in the meantime
                found += descriptor.readlink().name.startswith("socket:")
        return found


def worker_of(server: Server) -> Process:
    """Returns the only worker of a service."""
    assert server.process is not None
    main = server.process.pid
    (worker,) = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    return Process(int(worker))


def megabytes(size: float) -> float:
    return round(size / MEBIBYTE, 1)
