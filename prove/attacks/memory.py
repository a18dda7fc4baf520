"""Thousands of connections from many addresses, each using as much memory as it can. Other clients are still served."""

import contextlib
import resource
import time

from harness.claims import Skipped, hold, temporary_directory
from petstore.server.http_server import MEMORY_MAX
from prove.attacks.listeners import KINDS, Listener, listening
from prove.attacks.processes import MEBIBYTE, megabytes
from prove.proof import Figures, Parts, Scale

# Waiting times are not checked for the console, because its requests take a millisecond of CPU time each.
COUNTS = {"service": 3_000, "console": 1_000}
SHORT_COUNTS = {"service": 300, "console": 300}
SHORT_MAX = 8 * MEBIBYTE
# Allowed for Python itself: caches that fill up, and blocks that the allocator does not release.
OVERHEAD = 24 * MEBIBYTE
ANSWERED_WITHIN = 1.0  # seconds
OTHER = 39  # the number of the only address that does not attack


def prove(scale: Scale) -> Figures:
    counts, bound = (COUNTS, MEMORY_MAX) if scale.full else (SHORT_COUNTS, SHORT_MAX)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < max(counts.values()) + 200:
        raise Skipped(f"a process may open only {most} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    alterations = ["any_memory"] if scale.plant else [] if scale.full else [f"memory_max={bound}"]
    figures: Figures = {
        "connections": ", ".join(f"{name} {count}" for name, count in counts.items()),
        "bound MiB": megabytes(bound),
    }
    parts = Parts(scale)
    with temporary_directory() as data:
        for name, scheme in KINDS:
            with listening(data / f"{name}-{scheme}", name, scheme, *alterations) as listener:
                most, slowest = _attacked(listener, counts[name])
            figures[f"MiB, {listener.name}"] = megabytes(most)
            figures[f"slowest other ms, {listener.name}"] = round(1000 * slowest)
            with parts.part():
                hold(most <= bound + OVERHEAD, f"{listener.name} grew by {megabytes(most)} MiB")
                if scale.full and name == "service":
                    hold(slowest <= ANSWERED_WITHIN, f"{listener.name}: another client waited {slowest:.2f} s")
    parts.judge()
    return figures


def _attacked(listener: Listener, count: int) -> tuple[int, float]:
    """Returns the memory growth in bytes, and the longest time that a client at another address waited."""
    messages = _messages(listener)
    plain = listener.request(
        b"GET", b"/sign-in" if b"127." in listener.fields else b"/healthz", b"Connection: close\r\n"
    )
    before = listener.process.memory
    grown, slowest = 0, 0.0
    with contextlib.ExitStack() as opened:
        for number in range(count):
            with contextlib.suppress(OSError):  # closed during the handshake
                connection = opened.enter_context(listener.connect(number % OTHER))
                connection.setblocking(False)
                with contextlib.suppress(OSError):
                    connection.send(messages[number % len(messages)])
            if number % 50 == 49:
                grown = max(grown, listener.process.memory - before)
                began = time.monotonic()
                listener.status(plain, OTHER)
                slowest = max(slowest, time.monotonic() - began)
        time.sleep(1.0)
        grown = max(grown, listener.process.memory - before)
    return grown, slowest


def _messages(listener: Listener) -> list[bytes]:
    """Returns messages that use memory: unread files, a request after one, an unfinished body, an unfinished head."""
    stalled = listener.request(b"GET", listener.largest)
    rich = listener.request(b"GET", listener.largest, b"".join(b"x%02d:\r\n" % number for number in range(95)))
    body = listener.request(b"POST", listener.posts, listener.form, b"Content-Length: 65000\r\n", body=b"x" * 64_000)
    behind = listener.request(b"POST", listener.posts, b"Content-Length: 250000\r\n", body=b"x" * 240_000)
    return [
        stalled * 8_000,
        rich * 400,
        stalled + behind,
        body,
        listener.request(b"GET", b"/", b"X: " + b"v" * 31_000)[:-2],
    ]
