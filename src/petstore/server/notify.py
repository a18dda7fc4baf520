"""Tells systemd about the state of the service (sd_notify)."""

import contextlib
import os
import socket
import time


class Notifier:
    """Sends states to the socket in NOTIFY_SOCKET. Does nothing if the variable is not set."""

    def __init__(self) -> None:
        """Removes the variable, so that the workers do not inherit it."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        # An abstract address begins with a null byte, which the variable spells as "@".
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        """Ends a start or a reload, even if the reload has failed."""
        self._send("READY=1", f"STATUS={' '.join(status.split())}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=Reloading")

    def waiting(self, seconds: int, status: str) -> None:
        """Extends the timeout for a start or a reload to this many seconds from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={seconds}000000", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    def _send(self, *lines: str) -> None:
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto("\n".join(lines).encode(errors="backslashreplace"), self._address)
