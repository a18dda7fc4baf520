"""A look at a gate from outside, which changes nothing: does it keep what it is given, is its clock right?"""

import asyncio
import time
from pathlib import Path
from typing import Any, NamedTuple

from petstore.errors import Unavailable

CLOCKS_APART = 2.0  # seconds
PATIENCE = 2.0


class Inspection(NamedTuple):
    faults: list[str]
    about: str
    ahead: float = 0.0  # by how many seconds its clock is ahead of ours


def inspect_file(path: Path) -> Inspection:
    from petstore.gate.trust import readable

    if not path.exists():
        return Inspection([], "no file yet; the service makes one when it starts")
    if not readable(path):
        return Inspection([f"{path} is damaged; the next petstore serve sets it aside and counts anew"], "")
    return Inspection([], f"{path.stat().st_size // 2**20} MiB")


async def inspect_redis(url: str) -> Inspection:
    """Raises OperatorError for a URL that cannot be understood."""
    from petstore.gate.redis_links import open_link

    link = open_link(url)
    try:
        async with asyncio.timeout(PATIENCE):
            before = time.time()
            seconds, microseconds = map(int, await link.command("TIME"))
            ahead = seconds + microseconds / 1e6 - (before + time.time()) / 2
            faults = await _forgets(link)
            version = _field(await link.command("INFO", "server"), "redis_version")
            return Inspection(faults, f"Redis {version}", ahead)
    except (Unavailable, TimeoutError) as error:
        return Inspection([f"Redis does not answer: {str(error) or 'it takes too long'}"], "")
    finally:
        await link.close()


async def _forgets(link: Any) -> list[str]:
    """Settings under which counters get lost. A Redis that does not tell its settings is believed to be well set."""
    found: dict[str, str] = {}
    for name in ("maxmemory", "maxmemory-policy", "appendonly"):
        try:
            reply = await link.command("CONFIG GET", name)
        except Unavailable:
            return []
        pairs = list(reply.items()) if isinstance(reply, dict) else list(zip(reply[::2], reply[1::2], strict=True))
        found |= {_text(key): _text(value) for key, value in pairs}
    faults = []
    if found.get("maxmemory", "0") != "0" and found.get("maxmemory-policy") != "noeviction":
        faults.append("Redis throws records away when its memory is full: set maxmemory-policy noeviction")
    if found.get("appendonly") == "no":
        faults.append("Redis forgets counters when it is restarted: set appendonly yes")
    return faults


def _field(info: Any, name: str) -> str:
    if isinstance(info, dict):
        return str(info.get(name, "?"))
    lines = _text(info).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name + ":")), "?")


def _text(value: bytes | str) -> str:
    """A Cluster's replies come decoded."""
    return value.decode() if isinstance(value, bytes) else value
