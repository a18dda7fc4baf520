"""Runs several nodes that share PostgreSQL and Redis. Each node has its own data directory and clock."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.backends import Postgres, Redis
from harness.processes import launched
from harness.servers import Server

# Runs `petstore` with a clock that is wrong by this number of seconds.
_PETSTORE_AT = "import time; now = time.time; time.time = lambda: now() + {}; import petstore.cli; petstore.cli.main()"


class Node(Server):
    def __init__(self, data: Path, store: str, gate: str, *options: str, workers: int = 2, skew: float = 0.0) -> None:
        super().__init__(data, "own", *options, workers=workers)
        self.store, self.gate, self.skew = store, gate, skew

    def start(self, *, wait: bool = True) -> "Node":
        words = ["serve", "--port", str(self.port), "--workers", str(self.workers), *self.options]
        if self.skew:
            command = [sys.executable, "-c", _PETSTORE_AT.format(self.skew), *words]
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    command, stdout=log, stderr=log, env={**os.environ, **self.where}, start_new_session=True
                )
        else:
            self.process = launched([*self.program, *words], self.where, self.log)
        if wait:
            self.wait_until_ready()
        return self


@contextlib.contextmanager
def nodes_running(
    directory: Path, postgres: Postgres, redis: Redis, *options: str, skews: Sequence[float], workers: int = 2
) -> Iterator[list[Node]]:
    """Starts one node for each clock skew, on empty backends. All nodes start at the same time."""
    store, gate = postgres.url(), redis.url()
    nodes = [
        Node(directory / f"node{number}", store, gate, *options, workers=workers, skew=skew)
        for number, skew in enumerate(skews)
    ]
    try:
        for node in nodes:
            node.start(wait=False)
        for node in nodes:
            node.wait_until_ready()
        yield nodes
    finally:
        for node in nodes:
            node.stop()
