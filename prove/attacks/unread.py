"""Measures the memory used by clients that do not read the largest file, and by idle clients that have sent a lot."""

import contextlib
import time

from harness.claims import hold, temporary_directory
from prove.attacks.listeners import KINDS, Listener, listening, send
from prove.proof import Figures, Parts, Scale

UNREAD_MAX = 192 * 1024  # bytes per connection. The file is 1.5 MB in size
IDLE_MAX = 128 * 1024  # bytes per connection
IDLE = 120  # connections. With fewer, most of the figure would be memory that the allocator keeps
SENT = 720_000  # bytes per idle connection
CUT_OFF_WITHIN = 25.0  # seconds


def prove(scale: Scale) -> Figures:
    unread = 500 if scale.full else 60
    alterations = ["bodies_at_once", "all_received_kept"] if scale.plant else []
    parts = Parts(scale)
    figures: Figures = {"unread ones": unread, "idle ones": IDLE}
    with temporary_directory() as data:
        for name, scheme in KINDS:
            if name == "console":
                continue  # the console has no large file
            with parts.part():
                with listening(data / scheme, name, scheme, *alterations[:1]) as listener:
                    message = listener.request(b"GET", listener.largest)
                    kept = _kept(listener, unread, message, cut_off=scale.full)
                figures[f"KiB of each unread one, {listener.name}"] = kept // 1024
                hold(kept <= UNREAD_MAX, f"{listener.name} keeps {kept // 1024} KiB for each unread response")
            with parts.part():
                with listening(data / f"{scheme}-idle", name, scheme, *alterations[1:]) as listener:
                    message = listener.request(b"GET", b"/healthz", b"X: " + b"v" * (SENT // 24) + b"\r\n")
                    kept = _kept(listener, IDLE, message * 24)
                figures[f"KiB of each idle one, {listener.name}"] = kept // 1024
                hold(kept <= IDLE_MAX, f"{listener.name} keeps {kept // 1024} KiB for each idle connection")
    parts.judge()
    return figures


def _kept(listener: Listener, count: int, message: bytes, *, cut_off: bool = False) -> int:
    """Returns the bytes of memory per connection. Raises Broken if connections stay open that should be closed."""
    process = listener.process
    with listener.connect() as connection:
        send(connection, message)  # so that the process's buffers reach their maximum size
    before, sockets = process.memory, process.sockets
    with contextlib.ExitStack() as opened:
        for number in range(count):
            send(opened.enter_context(listener.connect(number)), message)
        time.sleep(1.0)  # until the service has sent all it can
        kept = max(0, process.memory - before) // count
        if cut_off:
            time.sleep(CUT_OFF_WITHIN)
            left = process.sockets - sockets
            hold(left <= 0, f"{listener.name}: {left} of {count} are open after {CUT_OFF_WITHIN:.0f} s")
    return kept
