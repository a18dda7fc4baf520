"""Bodies in the smallest possible chunks, with and without a key. Figure: how long one body blocks the worker."""

import socket
import time
from collections.abc import Iterator

from harness.claims import Skipped, hold, temporary_directory
from harness.servers import Server, started
from prove.attacks.altered import program
from prove.attacks.processes import worker_of
from prove.proof import Figures, Scale

LIMIT = 0.020  # seconds of CPU time
BODY = 64 * 1024
CHUNKS = 8_192  # the most that a body may have
PIECE = 64 * 1024
QUIET = 0.025  # seconds for an empty loop of a million iterations. Above this value, the machine is too busy
TIMES_SLOWER = 5  # the limit is this many times higher while other tests are running


def prove(scale: Scale) -> Figures:
    times = 20 if scale.full else 2
    costs: dict[str, float] = {}
    with temporary_directory() as data:
        server = Server(data / "data", "own", "--address-per-minute", "1000000")
        server.program = program("slow_chunks") if scale.plant else program()
        with started(server):
            key = f"Authorization: Bearer {server.key().secret}\r\n".encode()
            worker = worker_of(server)
            for kind, line, status, body in _cases(key):
                message = b"POST /v1/pets HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + line + b"\r\n" + body
                seconds = []
                for _ in range(times):
                    before = worker.cpu_seconds
                    _exchange(server.port, message, status)
                    seconds.append(worker.cpu_seconds - before)
                # Use the minimum, because other work can only make a request slower.
                costs[kind] = min(seconds)
    worst = max(costs.values())
    limit = LIMIT if scale.full else TIMES_SLOWER * LIMIT
    if worst > limit and not scale.plant and (slow := _seconds_of_a_loop()) > QUIET:
        raise Skipped(f"{1000 * worst:.1f} ms, but the machine is too busy to tell: a loop takes {1000 * slow:.0f} ms")
    hold(worst <= limit, f"a body in small chunks takes {1000 * worst:.1f} ms of CPU time")
    return {"each": times, **{f"{kind}, ms": round(1000 * cost, 1) for kind, cost in costs.items()}}


def _cases(key: bytes) -> Iterator[tuple[str, bytes, bytes, bytes]]:
    """Yields the name, the header line with the key, the expected status, and the body of each case.

    The second body is read completely and then found invalid, so the figure does not include a write to the store.
    """
    single = b"1\r\n \r\n" * BODY + b"0\r\n\r\n"
    most = b"".join(b"8;%04x\r\n[       \r\n" % number for number in range(CHUNKS)) + b"0\r\n\r\n"
    for who, line, refused, read in (("keyed", key, b"413", b"400"), ("keyless", b"", b"401", b"401")):
        yield f"{who}, {BODY:,} chunks of one byte", line, refused, single
        yield f"{who}, {CHUNKS:,} chunks of eight bytes", line, read, most


def _exchange(port: int, message: bytes, status: bytes) -> None:
    """Raises Broken."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for start in range(0, len(message), PIECE):
            try:
                connection.sendall(message[start : start + PIECE])
            except OSError:
                break  # the service has already responded
        answer = connection.recv(65536)
    hold(answer.startswith(b"HTTP/1.1 " + status), f"the request gets a {status!r}, not {answer[:40]!r}")


def _seconds_of_a_loop() -> float:
    best = 1.0
    for _ in range(5):
        before = time.process_time()
        for _ in range(10**6):
            pass
        best = min(best, time.process_time() - before)
    return best
