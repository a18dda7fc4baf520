"""A body of 64 KiB in chunks of one byte, with and without a key: how long does one keep the worker from all others?"""

import socket
import time
from collections.abc import Iterator

from harness.claims import Skipped, folder, hold
from harness.servers import Server, started
from prove.attacks.altered import program
from prove.attacks.processes import worker_of
from prove.proof import Figures, Scale

LIMIT = 0.010  # seconds of the worker's processor time for 64 KiB on the wire
UNIT = 64 * 1024
QUIET = 0.025  # seconds for a million turns of an empty loop; beyond this the machine is what is measured
TIMES_SLOWER = 5  # than the limit, beside other tests


def prove(scale: Scale) -> Figures:
    times = 20 if scale.full else 2
    body = b"[" + b" " * (UNIT - 1)  # read to its end, and then invalid: no write to the store is part of the figure
    chunked = b"".join(b"1\r\n%c\r\n" % octet for octet in body) + b"0\r\n\r\n"
    costs: dict[str, float] = {}
    with folder() as data:
        server = Server(data / "data", "own", "--address-per-minute", "1000000")
        server.program = program("slow_chunks") if scale.plant else program()
        with started(server):
            key = f"Authorization: Bearer {server.key().secret}\r\n".encode()
            worker = worker_of(server)
            for kind, line, status in (("keyed", key, b"400"), ("keyless", b"", b"401")):
                message = (
                    b"POST /v1/pets HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + line + b"\r\n" + chunked
                )
                seconds = []
                for _ in range(times):
                    before = worker.processor_seconds
                    _exchange(server.port, message, status)
                    seconds.append(worker.processor_seconds - before)
                # The machine can only make it slower: the least is what the work takes.
                costs[kind] = min(seconds) * UNIT / len(message)
    worst = max(costs.values())
    limit = LIMIT if scale.full else TIMES_SLOWER * LIMIT
    if worst > limit and not scale.plant and (slow := _seconds_of_a_loop()) > QUIET:
        raise Skipped(f"{1000 * worst:.1f} ms, but the machine is too busy to tell: a loop takes {1000 * slow:.0f} ms")
    hold(worst <= limit, f"64 KiB of one-byte chunks take {1000 * worst:.1f} ms of the processor")
    return {"bytes on the wire": len(message), "each": times,
            **{f"{kind} ms per 64 KiB": round(1000 * cost, 1) for kind, cost in costs.items()}}  # fmt: skip


def _exchange(port: int, message: bytes, status: bytes) -> None:
    """Raises Broken."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for piece in _pieces(message):
            try:
                connection.sendall(piece)
            except OSError:
                break  # it is answered already
        answer = connection.recv(65536)
    hold(answer.startswith(b"HTTP/1.1 " + status), f"the request is answered {status!r}, not {answer[:40]!r}")


def _pieces(message: bytes) -> Iterator[bytes]:
    for at in range(0, len(message), UNIT):
        yield message[at : at + UNIT]


def _seconds_of_a_loop() -> float:
    best = 1.0
    for _ in range(5):
        before = time.process_time()
        for _ in range(10**6):
            pass
        best = min(best, time.process_time() - before)
    return best
