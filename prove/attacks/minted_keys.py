"""One address sends thousands of well-formed keys that were never issued, and also uses a valid key.

After the address exceeds its limit, at most ten lookups per second reach the store. The valid key is never refused.
"""

import asyncio
import math
import time
from collections import Counter
from pathlib import Path

from harness.claims import hold, temporary_directory
from harness.servers import Server, started
from petstore.keys import mint
from prove.attacks.altered import program
from prove.load import percentile, steady
from prove.proof import Figures, Scale

ADDRESS_LIMIT = 30
LOOKUPS_PER_SECOND = 10
VALID_PER_SECOND, MINTED_PER_SECOND = 20, 400


def prove(scale: Scale) -> Figures:
    seconds = 20.0 if scale.full else 1.0  # less than a minute, after which the address may send more
    with temporary_directory() as data:
        log = data / "lookups"
        server = Server(data / "data", "own", "--address-per-minute", str(ADDRESS_LIMIT))
        server.program = program(f"lookups={log}", *(["any_number_of_lookups"] if scale.plant else []))
        with started(server):
            valid = _message(server.key().secret)
            minted = [_message(mint("live")) for _ in range(ADDRESS_LIMIT + int(MINTED_PER_SECOND * seconds))]
            _send(server, valid, minted[:ADDRESS_LIMIT], 0.5)
            allowed = len(_times(log))
            began = time.time()
            refused, slowest = _send(server, valid, minted[ADDRESS_LIMIT:], seconds)
            took = time.time() - began
            reached = _times(log)[allowed:]
    hold(allowed == ADDRESS_LIMIT, f"{allowed} lookups reached the store within the limit of {ADDRESS_LIMIT}")
    most = LOOKUPS_PER_SECOND * (math.ceil(took) + 1)  # the service's seconds start at other moments than ours
    hold(len(reached) <= most, f"{len(reached)} lookups reached the store in {took:.1f} s")
    return {"minted": len(minted), "refused": refused, "look-ups over the limit": len(reached),
            "most in a second": max(Counter(map(int, reached)).values()),
            "p99 of the valid key ms": round(slowest, 1), "of its requests refused": 0}  # fmt: skip


def _message(secret: str) -> bytes:
    return f"GET /v1/pets?limit=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n".encode()


def _times(log: Path) -> list[float]:
    return [float(line) for line in log.read_text().splitlines()]


def _send(server: Server, valid: bytes, minted: list[bytes], seconds: float) -> tuple[int, float]:
    """Returns how many minted keys got a 429, and the 99th percentile of the valid key's times in ms. Raises Broken."""

    async def both() -> tuple[list[int], float]:
        per_second = round(len(minted) / seconds)
        of_minted, of_valid = await asyncio.gather(
            steady(server.port, lambda number: minted[number], per_second=per_second, seconds=seconds, lines=4),
            steady(server.port, lambda _: valid, per_second=VALID_PER_SECOND, seconds=seconds, lines=2),
        )
        wrong = [answer.status for answer in of_valid if answer.status != 200]
        hold(not wrong, f"the valid key was refused: {wrong[:5]}")
        return [answer.status for answer in of_minted], percentile(of_valid, 0.99)

    statuses, slowest = asyncio.run(both())
    hold(set(statuses) <= {401, 429}, f"a key that was never issued gets a 401 or a 429, not {set(statuses)}")
    return statuses.count(429), slowest
