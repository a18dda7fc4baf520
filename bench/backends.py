"""PostgreSQL and Redis for the contenders: the same servers as in the tests, but durable."""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from harness.backends import Postgres, Process, Redis  # from the parent directory

_running: list[Process] = []


@functools.cache
def postgres() -> Postgres:
    """Starts a PostgreSQL server that acknowledges commits only after they are on disk."""
    server = Postgres("fsync=on", "synchronous_commit=on", "shared_buffers=256MB")
    _running.append(server)
    server.start()
    return server


@functools.cache
def redis() -> Redis:
    server = Redis()
    _running.append(server)
    server.start()
    return server


def end() -> None:
    while _running:
        _running.pop().remove()
