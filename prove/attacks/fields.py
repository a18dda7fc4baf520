"""Sends the service and the console the heads and bodies that take longest to parse. Figure: the CPU time of each."""

import itertools
import socket
import statistics
from collections.abc import Iterator

from harness.claims import hold, temporary_directory
from prove.attacks.listeners import TIMEOUT, Listener, listening
from prove.attacks.processes import Process
from prove.proof import Figures, Parts, Scale

HEAD_LIMIT, BODY_LIMIT = 0.001, 0.020  # seconds of CPU time
ATTEMPTS = 3
TIMES_SLOWER = 5  # the limits are this many times higher while other tests are running
LONG, PARSED = 31_000, 500  # bytes of a field: almost a whole head, and a length within every bound
BODY = 64 * 1024
FIELDS = (
    b"Accept", b"Accept-Encoding", b"Authorization", b"Connection", b"Content-Type", b"Cookie", b"If-None-Match",
    b"Origin", b"X-Forwarded-For",
)  # fmt: skip
FILLINGS = (b",", b";", b"a,", b"*;q=1,", b'"",', b"Bearer ", b"\xe9")
PREFERENCES = (b",", b'"', b',"', b'"",', b"a=1,", b'a="1";', b"a=")
NUMBER = b"NUMBER"  # replaced with a different number in each message, so that no response is cached
QUERIES = (b"a&", b"%&", b"%61&", b"&", b"=", b"limit=%31", b"cursor=+%41")


def prove(scale: Scale) -> Figures:
    times = 21 if scale.full else 3
    slower = 1 if scale.full or scale.plant else TIMES_SLOWER
    alterations = ["fields_of_any_length", "slow_bodies"] if scale.plant else []
    parts = Parts(scale)
    heads: dict[str, float] = {}
    bodies: dict[str, float] = {}
    with temporary_directory() as data:
        for name in ("service", "console"):
            with listening(data / name, name, "http", *alterations) as listener:
                for messages, limit, costs in (
                    (_heads(listener), slower * HEAD_LIMIT, heads), (_bodies(listener), slower * BODY_LIMIT, bodies)
                ):  # fmt: skip
                    found = {f"{name}: {what}": _cost(listener, each, times, limit) for what, each in messages}
                    with parts.part():
                        worst = _worst(found)
                        hold(found[worst] <= limit, f"{worst} takes {1000 * found[worst]:.2f} ms of CPU time")
                    costs |= found
    parts.judge()
    figures: Figures = {"heads": len(heads), "bodies": len(bodies), "each": times}
    for kind, costs in (("head", heads), ("body", bodies)):
        worst = _worst(costs)
        figures |= {f"worst {kind} ms": round(1000 * costs[worst], 2), f"worst {kind}": worst}
    return figures


def _worst(costs: dict[str, float]) -> str:
    return max(costs, key=lambda what: costs[what])


def _heads(listener: Listener) -> Iterator[tuple[str, bytes]]:
    for method, path in ((b"GET", b"/"), (b"GET", listener.posts), (b"HEAD", listener.largest)):
        for filling in FILLINGS:
            for field in FIELDS:
                line = field + b": " + (filling * LONG)[:LONG] + b"\r\n"
                yield f"{path.decode()} {field.decode()}: {filling!r}…", listener.request(method, path, line)
            lines = [field + b": " + (filling * PARSED)[:PARSED] + b"\r\n" for field in FIELDS]
            yield f"{path.decode()} all fields: {filling!r}…", listener.request(method, path, *lines)
        for filling in QUERIES:
            target = path + b"?" + (filling * 8_000)[:8_000]
            key = listener.form if b"Authorization" in listener.form else b""
            yield f"{path.decode()}?{filling.decode()}…", listener.request(method, target, key)
    if listener.staging_key:
        values = [(filling * PARSED)[: PARSED - len(NUMBER)] for filling in PREFERENCES] + [b"," * 200 + b'"' * 294]
        for value in values:
            line = b"Prefer: " + value + NUMBER + b"\r\n"
            yield (
                f"Prefer: {value[:3]!r}…{value[-3:]!r}",
                listener.request(b"GET", b"/staging/v1/pets", listener.staging_key, line),
            )
    many = b"".join(b"x%02d: %s\r\n" % (number, b"v" * 300) for number in range(95))
    yield "95 fields", listener.request(b"GET", b"/", many)
    for filling in (b"/", b"/a", b"/%41", b"."):
        yield f"{filling.decode()}…", listener.request(b"GET", b"/" + (filling * 8_000)[:8_000])


def _bodies(listener: Listener) -> Iterator[tuple[str, bytes]]:
    fillings = (
        b"&", b"a&", b"a=&", b"%41", b"a%41", b";", b"=", b"\xe9%41", b"--x\r\n\r\n", b"[", b'{"a":', b'"a",',
        b"\\u0041",
    )  # fmt: skip
    wholes = {
        "floats": b'{"x":[' + b"1e1," * 16_000 + b"1]}",
        "objects": b'{"x":[' + b"{}," * 20_000 + b"1]}",
        "members": b"{" + b'"a":1,' * 10_000 + b'"a":1}',
        **{repr(filling): (filling * BODY)[:BODY] for filling in fillings},
    }
    for what, body in wholes.items():
        length = b"Content-Length: %d\r\n" % len(body)
        yield f"{what}", listener.request(b"POST", listener.posts, listener.form, length, body=body)


def _cost(listener: Listener, message: bytes, times: int, limit: float) -> float:
    """Returns the CPU time in seconds. Measures again if it exceeds the limit, because the machine may be busy."""
    for _ in range(ATTEMPTS):
        found = statistics.median(_once(listener, listener.process, message) for _ in range(times))
        if found <= limit:
            break
    return found


_numbers = itertools.count()


def _once(listener: Listener, process: Process, message: bytes) -> float:
    before = process.cpu_seconds
    with socket.create_connection(("127.0.0.1", listener.port), TIMEOUT) as connection:
        connection.sendall(message.replace(NUMBER, b"%06d" % next(_numbers)))
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(4096)
        while connection.recv(65536):
            pass
    hold(answer.startswith(b"HTTP/1.1 "), f"{message[:60]!r}… is answered, not {answer[:40]!r}")
    return process.cpu_seconds - before
