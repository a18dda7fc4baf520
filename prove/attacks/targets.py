"""Request targets of 60 KB are refused with 414 before they are decoded. Figure: the CPU time of each."""

from collections.abc import Iterator

from harness.claims import hold, temporary_directory
from harness.servers import Server, started
from prove.attacks.altered import program
from prove.attacks.processes import Process, worker_of
from prove.http import converse
from prove.proof import Figures, Scale

LIMIT = 0.001  # seconds of the worker's CPU time
LENGTH = 60_000
BASES = (b"/v1", b"/staging/v1", b"")
WITHIN_BOUND = 8 * 1024


def prove(scale: Scale) -> Figures:
    times = 100 if scale.full else 3
    with temporary_directory() as data:
        server = Server(data / "data", "own", "--address-per-minute", "1000000")
        server.program = program("targets_of_any_length") if scale.plant else program()
        with started(server):
            secret = server.key().secret.encode()
            worker = worker_of(server)
            costs = {name: _cost(server, worker, target, key, times) for name, target, key in _attacks(secret, LENGTH)}
            # Targets just within the bound are decoded, so they take longest.
            longest = [
                _cost(server, worker, target, key, times, status=None)
                for _, target, key in _attacks(secret, WITHIN_BOUND - 20)
            ]
    worst = max(costs, key=lambda name: costs[name])
    if scale.full:
        hold(costs[worst] <= LIMIT, f"{worst} takes {1000 * costs[worst]:.2f} ms of CPU time")
    return {"kinds": len(costs), "each": times, "worst ms": round(1000 * costs[worst], 2), "of": worst,
            "worst of 8 KiB, which is decoded, ms": round(1000 * max(longest), 2)}  # fmt: skip


def _attacks(secret: bytes, length: int) -> Iterator[tuple[str, bytes, bytes]]:
    """Yields the name, the target and the header line of each attack."""
    for base in BASES:
        for key in (b"", b"Authorization: Bearer " + secret + b"\r\n"):
            keyed = "keyed" if key else "keyless"
            yield f"{keyed} {base.decode()}/%41/%41…", base + b"/%41" * (length // 4), key
            yield f"{keyed} {base.decode()}/pets?a&a…", base + b"/pets?" + b"a&" * (length // 2), key


def _cost(server: Server, worker: Process, target: bytes, key: bytes, times: int, status: int | None = 414) -> float:
    message = b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n" + key + b"Connection: close\r\n\r\n"
    before = worker.cpu_seconds
    for _ in range(times):
        got = converse(server.port, (message,), ("GET",))
        (answer,) = got.final
        if status is not None:
            hold(answer.status == status and got.closed, f"{target[:16]!r}… gets a {status}, not a {answer.status}")
            hold(answer.field("x-ratelimit-limit"), "a 414 has the headers of every response")
    return (worker.cpu_seconds - before) / times
