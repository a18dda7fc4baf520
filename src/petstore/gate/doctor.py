"""A look at a gate from outside, which changes nothing: does it keep what it is given, is its clock right?"""

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from petstore.errors import Unavailable

if TYPE_CHECKING:
    from petstore.gate.redis_link import SingleLink

CLOCKS_APART = 2.0  # seconds
PATIENCE = 2.0


class Inspection(NamedTuple):
    faults: list[str]
    about: str
    ahead: float = 0.0  # by how many seconds its clock is ahead of ours


def inspect_file(path: Path, *, in_use: bool) -> Inspection:
    from petstore.gate.recovery import readable

    if not path.exists():
        return Inspection([], "no file yet; the service makes one when it starts")
    if not os.access(path, os.R_OK):
        return Inspection([f"{path} may not be read; chown it to the user of the service"], "")
    if not readable(path, in_use=in_use):
        return Inspection([f"{path} is damaged; the next petstore serve sets it aside and counts anew"], "")
    return Inspection([], f"{path.stat().st_size // 2**20} MiB")


async def inspect_redis(url: str) -> Inspection:
    """All of its servers that keep records. Raises OperatorError for a URL that cannot be understood."""
    from petstore.gate.redis_link import open_link

    link = open_link(url)
    try:
        async with asyncio.timeout(PATIENCE):
            each = [await _inspect_server(name, server) for name, server in (await link.servers()).items()]
    except (Unavailable, TimeoutError) as error:
        return Inspection([f"Redis does not answer: {str(error) or 'it takes too long'}"], "")
    finally:
        await link.close()
    about = ", ".join(sorted({seen.about for seen in each}))
    return Inspection([fault for seen in each for fault in seen.faults], about, max((s.ahead for s in each), key=abs))


async def _inspect_server(name: str, link: "SingleLink") -> Inspection:
    before = time.time()
    seconds, microseconds = map(int, await link.command("TIME"))
    ahead = seconds + microseconds / 1e6 - (before + time.time()) / 2
    told = _fields(await link.command("INFO"))
    return Inspection(_forgets(name, told), f"Redis {told.get('redis_version', '?')}", ahead)


def _forgets(name: str, told: dict[str, str]) -> list[str]:
    """Settings under which counters get lost. A Redis that does not tell them is believed to be well set."""
    faults = []
    if told.get("maxmemory", "0") != "0" and told.get("maxmemory_policy") != "noeviction":
        faults.append(f"{name} throws records away when its memory is full: set maxmemory-policy noeviction")
    if told.get("aof_enabled") == "0":
        faults.append(f"{name} forgets counters when it is restarted: set appendonly yes")
    return faults


def _fields(info: bytes) -> dict[str, str]:
    """What Redis says of itself."""
    told = (line.partition(":") for line in info.decode().splitlines())
    return {name: value for name, _, value in told}
