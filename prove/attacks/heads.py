"""Connections that send large unfinished heads and disconnect. Figure: how much memory a worker still uses for them.

There are three kinds: a head just within the bounds, 7,500 short fields, and one field of 60 KB. The last two exceed a
bound.
"""

import contextlib
import socket
import time

from harness.claims import hold, temporary_directory
from harness.servers import Server, raw, started
from prove.attacks.altered import program
from prove.attacks.processes import MEBIBYTE, Process, megabytes, worker_of
from prove.proof import Figures, Scale

WITHIN = 30 * MEBIBYTE
SECONDS = 5.0
_LINE = b"GET /v1/pets HTTP/1.1\r\nHost: x\r\n"
HEADS = (
    _LINE + b"".join(b"X-Field-%d: %s\r\n" % (n, b"v" * 300) for n in range(90)),
    _LINE + b"".join(b"X-%d: v\r\n" % n for n in range(7_500)),
    _LINE + b"X-Field: " + b"v" * 60_000,
)
PLAIN = _LINE + b"Connection: close\r\n\r\n"


def prove(scale: Scale) -> Figures:
    rounds, count = (5, 500) if scale.full else (1, 50)
    growth: list[int] = []
    with temporary_directory() as data:
        server = Server(data / "data")
        server.program = program("memory_outlives_connections") if scale.plant else program()
        with started(server):
            worker = worker_of(server)
            raw(server.port, PLAIN)
            before, sockets = worker.memory, worker.sockets
            for _ in range(rounds):
                _abandon(server.port, count, worker, sockets)
                growth.append(_growth_after(worker, before, scale))
            answer = raw(server.port, PLAIN)
    hold(answer.startswith(b"HTTP/1.1 401"), "the worker answers afterwards")
    hold(max(growth) <= WITHIN, f"{SECONDS:.0f} s after they left, memory is {megabytes(max(growth))} MiB higher")
    return {"rounds": rounds, "connections": count, "memory before MiB": megabytes(before),
            "most above it MiB": megabytes(max(growth))}  # fmt: skip


def _abandon(port: int, count: int, worker: Process, sockets: int) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            with contextlib.suppress(OSError):  # the service has already refused the head
                connection.sendall(HEADS[number % len(HEADS)])
        _wait_until_held(worker, sockets + count // 4)


def _wait_until_held(worker: Process, sockets: int) -> None:
    """Waits until the worker has accepted the connections, because the kernel completes them earlier. Raises Broken."""
    deadline = time.monotonic() + SECONDS
    while worker.sockets <= sockets and time.monotonic() < deadline:
        time.sleep(0.01)
    hold(worker.sockets > sockets, "the worker keeps connections whose heads are within the bounds")


def _growth_after(worker: Process, before: int, scale: Scale) -> int:
    """Returns the memory growth after 5 s, or at the short scale as soon as the memory has been freed."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if not scale.full and worker.memory - before <= WITHIN and not scale.plant:
            break
        time.sleep(0.05)
        if scale.plant and worker.memory - before > WITHIN:
            break
    return max(0, worker.memory - before)
