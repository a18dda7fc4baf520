"""Runs several nodes that share PostgreSQL and Redis. Each node has its own data directory and clock."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.backends import Postgres, Redis
from harness.processes import launched
from harness.servers import Server


class Node(Server):
    def __init__(self, data: Path, store: str, gate: str, *options: str, workers: int = 2, skew: float = 0.0) -> None:
        super().__init__(data, "own", *options, workers=workers)
        self.store, self.gate = store, gate
        if skew:
            self.program = ["harness.wrong_clock", str(skew)]

    def start(self, *, wait: bool = True) -> "Node":
        words = ["serve", "--port", str(self.port), "--workers", str(self.workers), *self.options]
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
