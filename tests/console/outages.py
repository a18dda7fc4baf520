"""Simulated outages of servers, for several test files."""

import contextlib
from collections.abc import Iterator

from harness.backends import Process


@contextlib.contextmanager
def away(server: Process) -> Iterator[None]:
    """Suspends a server. An outage of this kind is harder to detect than a closed port."""
    server.hang()
    try:
        yield
    finally:
        server.go_on()
