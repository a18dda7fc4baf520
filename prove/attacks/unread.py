"""Requests for the largest file, by clients that never read: what each keeps in memory, and for how long."""

import contextlib
import time

from prove.attacks.listeners import KINDS, Listener, listening, send
from prove.proof import Figures, Scale, folder, hold

KEPT_MAX = 192 * 1024  # bytes for each connection; the file has 1.5 MB
CUT_OFF_WITHIN = 25.0  # seconds


def prove(scale: Scale) -> Figures:
    count = 500 if scale.full else 60
    figures: Figures = {"connections": count}
    with folder() as data:
        for name, scheme in KINDS:
            if name == "service":  # the console has no large file
                with listening(data / scheme, name, scheme, *(["bodies_at_once"] if scale.plant else [])) as listener:
                    figures[f"KiB of each, {listener.name}"] = _kept(listener, count, scale) // 1024
    return figures


def _kept(listener: Listener, count: int, scale: Scale) -> int:
    """Bytes of memory for each connection. Raises Broken."""
    process = listener.process
    before, sockets = process.memory, process.sockets
    with contextlib.ExitStack() as opened:
        for number in range(count):
            connection = opened.enter_context(listener.connect(number))
            send(connection, listener.request(b"GET", listener.largest))
        time.sleep(1.0)  # until the kernel takes no more
        kept = (process.memory - before) // count
        hold(kept <= KEPT_MAX, f"{listener.name} keeps {kept // 1024} KiB for each connection")
        if scale.full:
            time.sleep(CUT_OFF_WITHIN)
            left = process.sockets - sockets
            hold(left <= 0, f"{listener.name}: {left} of {count} are open after {CUT_OFF_WITHIN:.0f} s")
    return max(0, kept)
