"""Sends the service and the console 371 KiB of tiny trailers, some of them after a response that is not read."""

import contextlib
import time

from harness.claims import hold, temporary_directory
from prove.attacks.listeners import KINDS, Listener, listening, send
from prove.proof import Figures, Parts, Scale

TRAILERS = b"a:\r\n" * 95_000
KEPT_MAX = 512 * 1024  # bytes per connection


def prove(scale: Scale) -> Figures:
    count = 200 if scale.full else 20
    figures: Figures = {"connections": count, "bytes of trailers": len(TRAILERS)}
    parts = Parts(scale)
    with temporary_directory() as data:
        for name, scheme in KINDS:
            alterations = ["trailers_kept"] if scale.plant else []
            with parts.part(), listening(data / f"{name}-{scheme}", name, scheme, *alterations) as listener:
                figures[f"KiB of each, {listener.name}"] = _kept(listener, count) // 1024
    parts.judge()
    return figures


def _kept(listener: Listener, count: int) -> int:
    """Returns the bytes of memory per connection. Raises Broken."""
    attack = listener.request(
        b"POST", listener.posts, listener.form, b"Transfer-Encoding: chunked\r\n", body=b"0\r\n" + TRAILERS
    )
    stalled = listener.request(b"GET", listener.largest)
    before = listener.process.memory
    with contextlib.ExitStack() as opened:
        for number in range(count):
            connection = opened.enter_context(listener.connect(number))
            send(connection, attack if number % 2 else stalled + attack)
        time.sleep(0.5)
        kept = (listener.process.memory - before) // count
    hold(kept <= KEPT_MAX, f"{listener.name} keeps {kept // 1024} KiB for each connection")
    status = listener.status(attack)
    hold(status == 400, f"{listener.name} refuses the trailers with 400, not {status}")
    return max(0, kept)
