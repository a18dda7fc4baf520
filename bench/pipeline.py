"""Measures the cost of a request in one worker. Runs the server and the application in this process, without sockets.

Run `.venv/bin/python bench/pipeline.py [--rows list,get] [--rounds 6] [--profile]`. Messages are passed directly to
connections, so the result includes neither the kernel nor wrk. All messages are different, except in the row `same`.
The result is the CPU time per request, including the store's writer thread. The 10th percentile over small batches
hardly depends on other load on the machine.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import seed
import uvloop
from running import BENCH, BUILD

from petstore.keys import mint
from petstore.server.connection import Connection
from petstore.server.http_server import HttpServer
from petstore.service import Service
from petstore.settings import Settings
from petstore.web.requests import FIELDS

sys.path.insert(0, str(BENCH.parent))

from harness.in_process import Transport  # from the parent directory

ANIMALS, KEYS, CONNECTIONS = 100_000, 1_000, 32
BATCH = 10 * CONNECTIONS  # messages between two readings of the clock
BATCH_TIMEOUT = 30.0
BATCHES = 10  # batches of each row per round
PROFILED = 25  # functions to print


@dataclass(frozen=True, slots=True)
class Messages:
    """Creates realistic requests, which are the same in every run except for values that must be unique."""

    keys: list[str]
    spent_key: str  # refused, and soon banned
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def same(self) -> bytes:
        return f"GET /v1/pets HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.keys[0]}\r\n\r\n".encode()

    def list(self) -> bytes:
        parameters = ["limit=20", f"status={self.dice.choice(('available', 'pending', 'sold'))}"]
        self.dice.shuffle(parameters)
        query = "&".join(parameters[: self.dice.randint(0, 2)])
        return self._message("GET", f"/v1/pets?{query}" if query else "/v1/pets")

    def get(self) -> bytes:
        return self._message("GET", f"/v1/pets/{self.dice.randint(1, ANIMALS)}")

    def create(self) -> bytes:
        body = '{"name":"New","categoryId":7,"status":"available"}'
        fields = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        return self._message("POST", "/v1/pets", *fields, f"Idempotency-Key: {secrets.token_hex(16)}", body=body)

    def mix(self) -> bytes:
        return self.dice.choices((self.list, self.get, self.create), (70, 20, 10))[0]()

    def refused(self) -> bytes:
        return self._message("GET", "/v1/pets", key=self.spent_key)

    def _message(self, method: str, target: str, *more: str, body: str = "", key: str = "") -> bytes:
        lines = (
            f"{method} {target} HTTP/1.1",
            "Host: api.example.com",
            "User-Agent: python-httpx/0.28.1",
            "Accept: application/json",
            "Accept-Encoding: gzip, deflate",
            "Accept-Language: en",
            "Connection: keep-alive",
            f"Authorization: Bearer {key or self.dice.choice(self.keys)}",
            f"traceparent: 00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
            *more,
            "",
            body,
        )
        return "\r\n".join(lines).encode()


ROWS: dict[str, Callable[[Messages], bytes]] = {
    "list": Messages.list,
    "get": Messages.get,
    "create": Messages.create,
    "mix": Messages.mix,
    "same": Messages.same,
    "refused": Messages.refused,
}
EXPECTED = {"refused": b"HTTP/1.1 429"}  # the other rows expect a success


class Answered(Transport):
    """A transport that passes each response, which is a single write, to a function."""

    def __init__(self, on_response: Callable[[Any], None]) -> None:
        super().__init__()
        self._on_response = on_response

    def write(self, data: Any) -> None:
        self._on_response(data)


class Clients:
    """Connections that each send one message, and then wait until all of them have a response."""

    def __init__(self, server: HttpServer) -> None:
        self._missing = 0
        self._expected = self._failed = b""
        self._all_answered = asyncio.Event()
        self._connections = [Connection(server) for _ in range(CONNECTIONS)]
        for connection in self._connections:
            connection.connection_made(Answered(self._answered))

    def _answered(self, response: bytes) -> None:
        self._missing -= 1
        if not response.startswith(self._expected):
            self._failed = response
        if not self._missing:
            self._all_answered.set()

    async def send(self, messages: list[bytes], expected: bytes) -> None:
        """Raises SystemExit if a response does not begin as expected."""
        self._expected, self._failed = expected, b""
        for start in range(0, len(messages), CONNECTIONS):
            self._missing = CONNECTIONS
            self._all_answered.clear()
            for connection, message in zip(self._connections, messages[start : start + CONNECTIONS], strict=True):
                connection.data_received(message)
            await self._all_answered.wait()
        if self._failed:
            raise SystemExit(f"not {expected!r}: {self._failed!r}")


async def measure(clients: Clients, messages: Messages, row: str, profile: cProfile.Profile | None) -> list[float]:
    """Returns the microseconds per request for each batch. Raises TimeoutError, or SystemExit if a request fails."""
    taken = []
    for _ in range(BATCHES):
        batch = [ROWS[row](messages) for _ in range(BATCH)]
        gc.collect()
        with profiled(profile):
            begun = time.process_time()
            async with asyncio.timeout(BATCH_TIMEOUT):
                await clients.send(batch, EXPECTED.get(row, b"HTTP/1.1 20"))
            taken.append((time.process_time() - begun) / BATCH * 1e6)
    return taken


@contextmanager
def profiled(profile: cProfile.Profile | None) -> Iterator[None]:
    if profile is None:
        yield
        return
    profile.enable()
    try:
        yield
    finally:
        profile.disable()


async def run(directory: Path, rows: list[str], rounds: int, *, profiling: bool) -> None:
    settings = Settings(data=directory / "data")
    keys, spent_key = [mint("live") for _ in range(KEYS)], mint("live")
    await seed.fill(settings, ANIMALS, keys, spent_key)
    service = Service(settings)
    server = HttpServer(await service.start(), FIELDS)
    clients, messages = Clients(server), Messages(keys, spent_key)
    taken: dict[str, list[float]] = {row: [] for row in rows}
    profiles = {row: cProfile.Profile() if profiling else None for row in rows}
    # Fill the caches. On a slow disk, a store that was just filled may refuse its first create requests.
    for row in rows:
        with suppress(SystemExit):
            await measure(clients, messages, row, None)
    for _ in range(rounds):
        for row in rows:
            taken[row] += await measure(clients, messages, row, profiles[row])
    await service.stop()
    for row, profile in profiles.items():
        if profile:
            print(f"\n{row}")
            pstats.Stats(profile).sort_stats("tottime").print_stats(PROFILED)
    if profiling:
        print("The profiler slows down every call. Use it to compare functions, not rows.")
    print(f"{'row':8} {'p10 µs':>8} {'p50 µs':>8}")
    for row, times in taken.items():
        times.sort()
        print(f"{row:8} {times[len(times) // 10]:8.1f} {times[len(times) // 2]:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"rows to run, out of {','.join(ROWS)} (default all)")
    parser.add_argument("--rounds", type=int, default=6, help=f"rounds of {BATCHES} batches for each row (default 6)")
    parser.add_argument("--profile", action="store_true", help="print a profile by function")
    given = parser.parse_args()
    rows = given.rows.split(",")
    if unknown := set(rows) - set(ROWS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(ROWS)}")
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pipeline-", dir=BUILD) as directory:
        uvloop.run(run(Path(directory), rows, given.rounds, profiling=given.profile))


if __name__ == "__main__":
    main()
