"""The health page: this node's workers and latency, the backends, the last backup, the version and the certificate."""

import asyncio
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from petstore import __version__
from petstore.console.background import BackgroundValue
from petstore.data_dir import LAST_BACKUP, METRICS
from petstore.errors import Unavailable
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.observability.multiprocess import last_heartbeat, merged
from petstore.settings import Settings
from petstore.store import Store

CHECK_TIMEOUT = 2.0  # seconds
SILENT_AFTER = 10.0  # seconds without a heartbeat after which the service counts as down; workers send one per second
HISTORY_SECONDS = 300.0
DISK_FULL_BYTES = 16 * 1024 * 1024  # the gate's file and SQLite's log need this much space to grow to their usual size
DURATION = "petstore_request_duration_seconds_bucket"

Buckets = dict[float, float]  # maps an upper bound in seconds to the number of requests that took at most that long


class Check(NamedTuple):
    """A backend's response time. `error` is empty if the backend responded."""

    milliseconds: float
    error: str = ""


class Latency(NamedTuple):
    """Response times of a node's workers in milliseconds, rounded up to the upper bound of a histogram bucket."""

    requests: int
    p50: float
    p99: float


class Trouble(NamedTuple):
    """A problem that is shown at the top of every page.

    `since` is a Unix time, or None if the service has never been started.
    """

    part: Literal["service", "gate", "disk"]
    since: float | None = None
    data: Path | None = None  # the data directory, if the problem is a full disk
    free_bytes: int = 0


class Node:
    def __init__(self, settings: Settings, stores: dict[Environment, Store], gate: Gate) -> None:
        self._settings = settings
        self._stores = stores
        self._gate = gate
        self._history: deque[tuple[float, Buckets]] = deque()
        self._workers = BackgroundValue(self._read_workers)
        self._degraded_since: float | None = None
        self._full_since: float | None = None

    def troubles(self) -> list[Trouble]:
        """Returns the current problems: a full disk, a service that hangs or is not running, or a gate that is down.

        With PostgreSQL, every node may be on another machine, so a service that is not running counts as a problem
        only if it has run on this machine before.
        """
        now, found = time.time(), []
        free_bytes = _free_bytes(self._settings.data)
        self._full_since = (self._full_since or now) if _is_full(free_bytes) else None
        if self._full_since is not None:
            found.append(Trouble("disk", self._full_since, self._settings.data.absolute(), free_bytes or 0))
        seen = last_heartbeat(self._settings.data / METRICS)
        if now - seen > SILENT_AFTER if seen is not None else self._settings.store is None:
            found.append(Trouble("service", seen))
        self._degraded_since = (self._degraded_since or now) if self._gate.degraded() else None
        if self._degraded_since is not None:
            found.append(Trouble("gate", self._degraded_since))
        return found

    async def content(self) -> dict[str, Any]:
        """Returns the template context for the health page."""
        *stores, gate = await asyncio.gather(
            *(_timed(store.database.ping()) for store in self._stores.values()), _timed(self._gate.keys_version("live"))
        )
        if not gate.error and self._gate.degraded():
            gate = gate._replace(error="Redis is not responding, so each node uses local counters")
        settings = self._settings
        # Access the disk in a thread, so that the console stays responsive if the disk hangs.
        free_bytes, last_backup = await asyncio.to_thread(_read_disk, settings.data)
        return {
            "version": __version__,
            "store": "SQLite" if settings.store is None else "PostgreSQL",
            "gate": "LMDB" if settings.gate is None else "Redis",
            "store_checks": dict(zip(self._stores, stores, strict=True)),
            "gate_check": gate,
            "workers": await self._workers.latest(),
            "data": settings.data.absolute() if free_bytes is not None else None,
            "free_bytes": free_bytes,
            "disk_full": _is_full(free_bytes),
            "last_backup": last_backup,
        }

    async def _read_workers(self) -> dict[str, Any]:
        """Returns totals for all workers. `latency` covers the last 5 minutes and is None if there were no requests."""
        sums, buckets = await asyncio.to_thread(_read_metrics, self._settings.data / METRICS)
        now = time.monotonic()
        while self._history and (
            now - self._history[0][0] > HISTORY_SECONDS or _total(self._history[0][1]) > _total(buckets)
        ):
            self._history.popleft()  # too old, or recorded before the service was restarted
        self._history.append((now, buckets))
        return {
            "running": int(sums["petstore_workers"]),
            "starts": int(sums["petstore_worker_starts_total"]),
            "memory_bytes": int(sums["process_resident_memory_bytes"]),
            "certificate_expires": sums.get("petstore_certificate_expiry_timestamp_seconds"),
            "latency": latency_between(self._history[0][1] if len(self._history) > 1 else {}, buckets),
        }


def _read_disk(data: Path) -> tuple[int | None, float | None]:
    """Returns the free disk space in bytes and the time of the last backup."""
    backup = data / LAST_BACKUP
    return _free_bytes(data), backup.stat().st_mtime if backup.exists() else None


def _free_bytes(data: Path) -> int | None:
    """Returns the free disk space in bytes, or None if there is no data directory (with PostgreSQL and Redis)."""
    return shutil.disk_usage(data).free if data.is_dir() else None


def _is_full(free_bytes: int | None) -> bool:
    return free_bytes is not None and free_bytes < DISK_FULL_BYTES


def latency_between(before: Buckets, after: Buckets) -> Latency | None:
    """Returns the latency of requests that finished between two readings of a histogram, or None if none finished."""
    counts = sorted((bound, count - before.get(bound, 0)) for bound, count in after.items())
    total = counts[-1][1] if counts else 0
    if total <= 0:
        return None
    p50, p99 = (next(bound for bound, count in counts if count >= share * total) for share in (0.5, 0.99))
    return Latency(int(total), 1000 * p50, 1000 * p99)


def _total(buckets: Buckets) -> float:
    return max(buckets.values(), default=0)


def _read_metrics(directory: Path) -> tuple[dict[str, float], Buckets]:
    """Returns each metric's sum over all labels, and the histogram of response times.

    Both are empty if the service is not running.
    """
    sums: dict[str, float] = defaultdict(float)
    buckets: Buckets = defaultdict(float)
    for family in merged(directory).collect():
        for sample in family.samples:
            if sample.name == DURATION:
                buckets[float(sample.labels["le"])] += sample.value
            else:
                sums[sample.name] += sample.value
    return sums, buckets


async def _timed(call: Awaitable[object]) -> Check:
    began = time.perf_counter()
    error = ""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await call
    except TimeoutError:
        error = f"no response within {CHECK_TIMEOUT:.0f} seconds"
    except Unavailable as failure:
        error = str(failure)
    return Check(1000 * (time.perf_counter() - began), error)
