"""Runs bash with job control on a pseudo-terminal, as an operator does."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.backends import program
from harness.served import wait_for

CTRL_Z = "\x1a"


class Shell:
    def __init__(self, variables: Mapping[str, str]) -> None:
        self._terminal, terminal = os.openpty()
        words = [program("setsid"), "--ctty", program("bash"), "--norc", "--noprofile", "-i"]
        self._bash = subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, env=dict(variables))
        os.close(terminal)
        self.printed = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the shell has ended
            while data := os.read(self._terminal, 65536):
                self.printed += data.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def run(self, command: str) -> int:
        """Types a command and returns its process id."""
        self.type(f"{command}\n")
        assert wait_for(self._children)
        return int(self._children()[0])

    def _children(self) -> list[str]:
        return Path(f"/proc/{self._bash.pid}/task/{self._bash.pid}/children").read_text().split()

    def close(self) -> None:
        for pid in (*map(int, self._children()), self._bash.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._bash.wait()
        os.close(self._terminal)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextlib.contextmanager
def shell(variables: Mapping[str, str]) -> Iterator[Shell]:
    opened = Shell(variables)
    try:
        yield opened
    finally:
        opened.close()
