"""Thousands of clients send heads and bodies slowly, while other clients send requests at a fixed rate.

Rounds with and without slow clients alternate. The slow clients may at most double the 99th percentile of the others.
`python -m prove.slow PORT KEY COUNT` runs the slow clients.
"""

import asyncio
import contextlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.claims import Skipped, hold, temporary_directory
from harness.servers import Server, started
from prove.load import Answer, percentile, steady
from prove.proof import Figures, Scale

PER_SECOND = 250
ROUND_SECONDS = 6.0
FACTOR = 2.0
QUIET = 25.0  # milliseconds. A list request takes less than one, so above this value the machine is too busy
CONNECT_WITHIN = 20.0


def prove(scale: Scale) -> Figures:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # inherited by the service and the slow clients
    alone: list[float] = []
    with_slow: list[float] = []
    with temporary_directory() as data, started(Server(data / "data")) as server:
        server.fill(1_000)
        secret = server.key().secret
        for _ in range(scale.slow_rounds):
            alone.append(_p99(server, secret, scale))
            with _slow_clients(server, secret, 0 if scale.plant else scale.slow_clients):
                _wait_for(server, 2 * scale.slow_clients, within=2.0 if scale.plant else CONNECT_WITHIN)
                with_slow.append(_p99(server, secret, scale))
                _wait_for(server, 2 * scale.slow_clients, within=2.0)
    before, during = statistics.median(alone), statistics.median(with_slow)
    if scale.full:
        if before > QUIET:
            raise Skipped(
                f"p99 alone is {before:.0f} ms, and {during:.0f} ms with slow clients: the machine is too busy to tell"
            )
        hold(during <= FACTOR * before, f"p99 is {before:.1f} ms alone and {during:.1f} ms with slow clients")
    return {"slow heads": scale.slow_clients, "slow bodies": scale.slow_clients, "p99 alone ms": round(before, 2),
            "p99 with them ms": round(during, 2), "times": round(during / before, 2)}  # fmt: skip


def _p99(server: Server, secret: str, scale: Scale) -> float:
    line = f"Host: x\r\nAuthorization: Bearer {secret}\r\n\r\n"

    def make(number: int) -> bytes:
        return f"GET /v1/pets?limit={number % 50 + 1} HTTP/1.1\r\n{line}".encode()

    seconds = ROUND_SECONDS if scale.full else 1.0
    answers: list[Answer] = asyncio.run(steady(server.port, make, per_second=PER_SECOND, seconds=seconds))
    wrong = [answer.status for answer in answers if answer.status != 200]
    hold(not wrong, f"{len(wrong)} of {len(answers)} normal requests did not get a 200: {wrong[:3]}")
    return percentile(answers, 0.99)


@contextlib.contextmanager
def _slow_clients(server: Server, secret: str, count: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "prove.slow", str(server.port), secret, str(count)])
    try:
        yield
    finally:
        process.kill()
        process.wait()
        # Wait, because thousands of simultaneous disconnections delay other requests. Real clients leave one by one.
        _wait_until(server, lambda opened: opened < 200, "the slow clients are gone", CONNECT_WITHIN)


def _wait_for(server: Server, connections: int, within: float) -> None:
    """Waits until this many connections are open, except for some that were just closed. Raises Broken."""
    _wait_until(server, lambda opened: opened >= 0.9 * connections, f"{connections} slow clients are connected", within)


def _wait_until(server: Server, holds: Callable[[int], bool], what: str, within: float) -> None:
    """Waits until `holds` is true for the worker's number of open files. Raises Broken after `within` seconds."""
    assert server.process is not None
    supervisor = server.process.pid
    worker = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()[0]
    deadline = time.monotonic() + within
    while not holds(opened := len(list(Path(f"/proc/{worker}/fd").iterdir()))):
        hold(time.monotonic() < deadline, f"{what}: the service has {opened} files open")
        time.sleep(0.05)


async def trickle(port: int, beginning: bytes, delay: float) -> None:
    """Sends one byte per second until the server closes the connection, then reconnects."""
    await asyncio.sleep(delay)
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(beginning)
            while not writer.is_closing():
                await asyncio.sleep(1)
                writer.write(b"x")
                await writer.drain()
        await asyncio.sleep(0.1)


async def be_slow(port: int, secret: str, count: int) -> None:
    head = b"GET /v1/pets HTTP/1.1\r\nHost: x\r\nX-Slow: "
    body = (
        f"POST /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nContent-Length: 999\r\n\r\n".encode()
    )
    # Spread the clients over a second, because real clients do not send at the same moment.
    await asyncio.gather(*(trickle(port, begin, n / max(1, count)) for n in range(count) for begin in (head, body)))


if __name__ == "__main__":
    asyncio.run(be_slow(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
