"""The gate's part of `petstore check`: checks the gate file, or the settings and the clock of the Redis servers."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from petstore.errors import OperatorError, Unavailable
from petstore.settings import without_password

if TYPE_CHECKING:
    from petstore.gate.redis_link import SingleLink

CLOCK_TOLERANCE = 2.0  # seconds
REDIS_TIMEOUT = 2.0  # seconds


class GateReport(NamedTuple):
    faults: list[str]
    about: str
    ahead: float = 0.0  # how many seconds the gate's clock is ahead of this machine's clock


def check_gate_file(path: Path, *, in_use: bool) -> GateReport:
    """Checks the gate file. Set `in_use` if any process has the file open."""
    from petstore.gate.recovery import check_format, not_recognised, readable, was_used

    if not path.exists() or path.stat().st_size == 0:
        return GateReport([], "no file yet; the service creates it on startup")
    if not readable(path, in_use=in_use):
        if not was_used(path):
            return GateReport([str(not_recognised(path))], "")
        return GateReport([f"{path} is damaged; the next `petstore serve` renames it and starts with new counters"], "")
    try:
        check_format(path)
    except OperatorError as error:
        return GateReport([str(error)], "")
    return GateReport([], f"{path.stat().st_size // 2**20} MiB")


async def check_redis(url: str) -> GateReport:
    """Checks every Redis server that stores records. Raises OperatorError if the URL is not valid."""
    from petstore.gate.redis_url import open_link

    link = open_link(url)
    try:
        async with asyncio.timeout(REDIS_TIMEOUT):
            reports = [await _check_server(name, server) for name, server in (await link.servers()).items()]
    except (Unavailable, TimeoutError) as error:
        return GateReport([f"{without_password(url)} does not respond: {str(error) or 'timed out'}"], "")
    finally:
        await link.close()
    return GateReport(
        faults=[fault for report in reports for fault in report.faults],
        about=", ".join(sorted({report.about for report in reports})),
        ahead=max((report.ahead for report in reports), key=abs),
    )


async def _check_server(name: str, link: "SingleLink") -> GateReport:
    before = time.time()
    seconds, microseconds = map(int, await link.command("TIME"))
    ahead = seconds + microseconds / 1e6 - (before + time.time()) / 2
    info = _parse_info(await link.command("INFO"))
    return GateReport(_lossy_settings(name, info), f"Redis {info.get('redis_version', '?')}", ahead)


def _lossy_settings(name: str, info: dict[str, str]) -> list[str]:
    """Returns a message for each Redis setting that can cause counters to be lost.

    Skips settings that INFO does not report.
    """
    faults = []
    if info.get("maxmemory", "0") != "0" and info.get("maxmemory_policy") != "noeviction":
        faults.append(f"{name} evicts records when its memory is full: set maxmemory-policy noeviction")
    if info.get("aof_enabled") == "0":
        faults.append(f"{name} loses counters when it restarts: set appendonly yes")
    return faults


def _parse_info(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode().splitlines())
    return {name: value for name, _, value in lines}
