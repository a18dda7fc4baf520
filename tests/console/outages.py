"""Servers that do not respond, for several files of tests."""

import contextlib
from collections.abc import Iterator

from harness.backends import Process


@contextlib.contextmanager
def away(server: Process) -> Iterator[None]:
    """A server that hangs: a harder case than a closed port."""
    server.hang()
    try:
        yield
    finally:
        server.go_on()
