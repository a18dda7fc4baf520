"""Power cuts while the gate is in use. The gate does not sync its file, so a power cut leaves pages of different ages.

Each image mixes pages that were written at different times. Recovery must set every image aside, and the gate must then
work with new counters.
"""

import asyncio
import os
import random
from pathlib import Path

from harness.claims import hold, temporary_directory
from petstore.errors import OperatorError
from petstore.gate import GatePolicy
from petstore.gate.lmdb import LmdbGate
from petstore.gate.recovery import SYNCED, recover
from petstore.plans import Limits
from prove.proof import Figures, Scale

PAGE = 4096
USED = 2 * 1024 * 1024  # bytes of the file that are in use
LIMITS = Limits(5, 1_000)
REQUESTS, SNAPSHOT_EVERY = 3_000, 200


def prove(scale: Scale) -> Figures:
    dice = random.Random(2030)
    with temporary_directory() as life:
        moments = asyncio.run(_snapshots(life / "gate.mdb", dice))
    for _ in range(scale.cuts):
        last = dice.randrange(1, len(moments))
        first = max(0, last - dice.randint(1, 3))
        pages = (dice.choice(moments[first : last + 1])[at : at + PAGE] for at in range(0, USED, PAGE))
        with temporary_directory() as image:
            (image / "gate.mdb").write_bytes(b"".join(pages).ljust(16 * 1024 * 1024, b"\0"))
            # Planted fault: the note says that the file was synced, which hides the power cut.
            note = SYNCED if scale.plant else "the boot before the power cut"
            (image / "gate.mdb-boot").write_text(note)
            _check(image / "gate.mdb")
    return {"power cuts": scale.cuts, "images used": 0, "gates that decide afterwards": scale.cuts}


async def _snapshots(path: Path, dice: random.Random) -> list[bytes]:
    """Counts requests with a gate. Returns the content of its file at several moments."""
    gate = LmdbGate(path, GatePolicy())
    keys = await gate.keys_version("live")
    moments = []
    for number in range(REQUESTS):
        now = 1e6 + number / 10
        await gate.admit("live", f"key{dice.randrange(1_500)}", LIMITS, keys, now, "other")
        await gate.admit_address("live", f"10.{dice.randrange(200)}.{dice.randrange(250)}.1", now)
        if number % 50 == 0:
            await gate.sweep(now)
        if number % SNAPSHOT_EVERY == 0:
            moments.append(path.read_bytes()[:USED])
    await gate.close()
    return moments


def _check(path: Path) -> None:
    """Uses the gate in a child process, because a damaged file can crash it. Raises Broken."""
    hold(_is_set_aside(path), "a gate file that was in use during a power cut is set aside")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if asyncio.run(_decides(path)) else 2
        finally:
            os._exit(code)
    hold(os.waitpid(child, 0)[1] == 0, "the gate works after a power cut")


def _is_set_aside(path: Path) -> bool:
    """Returns whether recovery sets the file aside, rather than using it or refusing to start."""
    try:
        return recover(path) is not None
    except OperatorError:
        return False


async def _decides(path: Path) -> bool:
    gate = LmdbGate(path, GatePolicy())
    keys = await gate.keys_version("live")
    for number in range(1, LIMITS.per_minute + 1):
        admitted = await gate.admit("live", "key1", LIMITS, keys, 2e6, "other")
        if admitted is None or admitted[0].remaining != LIMITS.per_minute - number:
            return False
    return True
