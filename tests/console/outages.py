"""Servers that do not respond, for several test files."""

import contextlib
from collections.abc import Iterator

from harness.backends import Process


@contextlib.contextmanager
def away(server: Process) -> Iterator[None]:
    """Suspends a server, which is a harder case than a closed port."""
    server.hang()
    try:
        yield
    finally:
        server.go_on()
