"""Power cuts of the gate: its file is never synced while in use, so any page may be of any age. None may be believed.

Images are mixed page by page from several moments of a gate at work. Whatever they look like, the next start must have
a gate that decides, with counters that start anew.
"""

import asyncio
import os
import random
from pathlib import Path

from petstore.gate import GatePolicy
from petstore.gate.lmdb import LmdbGate
from petstore.gate.recovery import recover
from petstore.plans import Limits
from prove.proof import Figures, Scale, folder, hold

PAGE = 4096
USED = 2 * 1024 * 1024  # of the file; the rest is still empty
LIMITS = Limits(5, 1_000)
REQUESTS, SNAPSHOT_EVERY = 3_000, 200


def prove(scale: Scale) -> Figures:
    dice = random.Random(2030)
    with folder() as life:
        moments = asyncio.run(_live(life / "gate.mdb", dice))
    for _ in range(scale.cuts):
        last = dice.randrange(1, len(moments))
        first = max(0, last - dice.randint(1, 3))
        pages = (dice.choice(moments[first : last + 1])[at : at + PAGE] for at in range(0, USED, PAGE))
        with folder() as image:
            (image / "gate.mdb").write_bytes(b"".join(pages).ljust(16 * 1024 * 1024, b"\0"))
            if not scale.plant:  # planted: nobody has noticed that the machine was down
                (image / "gate.mdb-boot").write_text("the boot before the power cut")
            _judge(image / "gate.mdb")
    return {"power cuts": scale.cuts, "believed": 0, "gates that decide afterwards": scale.cuts}


async def _live(path: Path, dice: random.Random) -> list[bytes]:
    """What the file was at several moments of a busy life."""
    gate = LmdbGate(path, GatePolicy())
    keys = await gate.keys_version("live")
    moments = []
    for number in range(REQUESTS):
        now = 1e6 + number / 10
        await gate.admit("live", f"key{dice.randrange(1_500)}", LIMITS, keys, now)
        await gate.admit_address("live", f"10.{dice.randrange(200)}.{dice.randrange(250)}.1", now)
        if number % 50 == 0:
            await gate.sweep(now)
        if number % SNAPSHOT_EVERY == 0:
            moments.append(path.read_bytes()[:USED])
    await gate.close()
    return moments


def _judge(path: Path) -> None:
    """In a process of its own, since a mixed file can end one. Raises Broken."""
    aside = recover(path)
    hold(aside is not None, "a gate that was in use when the power went is not believed")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if asyncio.run(_decides(path)) else 2
        finally:
            os._exit(code)
    hold(os.waitpid(child, 0)[1] == 0, "the gate decides after a power cut")


async def _decides(path: Path) -> bool:
    gate = LmdbGate(path, GatePolicy())
    keys = await gate.keys_version("live")
    for number in range(1, LIMITS.per_minute + 1):
        answer = await gate.admit("live", "key1", LIMITS, keys, 2e6)
        if answer is None or answer[0].remaining != LIMITS.per_minute - number:
            return False
    return True
