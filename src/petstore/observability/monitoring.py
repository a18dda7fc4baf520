"""The metrics of one worker while it runs: what is looked up once a second, and what a scrape is given."""

import asyncio
import contextlib
import logging
import os
import shutil
from pathlib import Path

from petstore import __version__
from petstore.data_dir import LAST_BACKUP
from petstore.gate import GATE_FILE
from petstore.keys import ENVIRONMENTS
from petstore.observability import metrics
from petstore.observability.logs import event
from petstore.observability.metrics.shared import Values, Workers, of_this_process
from petstore.settings import Settings

PAGE = os.sysconf("SC_PAGE_SIZE")


class Monitoring:
    def __init__(self, settings: Settings) -> None:
        metrics.reset()
        self._settings = settings
        self._workers: Workers | None = Workers(settings.data / "metrics")
        self._cpu = 0.0
        metrics.WORKER_STARTS.add()
        try:
            self._workers.join()
        except OSError as error:  # a service that cannot tell its numbers still serves
            event(logging.ERROR, "metrics not shared", cause=str(error), effect="each worker tells its own alone")
            self._workers = None

    def tick(self, late: float) -> None:
        """Once a second; `late` is by how much."""
        metrics.LOOP_LAG.observe(max(0.0, late))
        spent = os.times()
        cpu = spent.user + spent.system
        metrics.CPU_SECONDS.add(by=cpu - self._cpu)
        self._cpu = cpu
        metrics.MEMORY_BYTES.set(_resident())
        self._publish()

    def close(self) -> None:
        if self._workers is not None:
            with contextlib.suppress(OSError):
                self._workers.leave()

    async def scrape(self, accept: str) -> tuple[str, bytes]:
        """The metrics of the node: the media type and the body."""
        self._publish()
        # In a thread: the first time a library is imported, and no request should wait for that.
        return await asyncio.to_thread(self._render, accept, of_this_process())

    def _publish(self) -> None:
        if self._workers is not None:
            with contextlib.suppress(OSError):
                self._workers.publish()

    def _render(self, accept: str, own: Values) -> tuple[str, bytes]:
        from petstore.observability.metrics.prometheus import render

        values, alive = own, 1
        if self._workers is not None:
            with contextlib.suppress(OSError):
                values, alive = self._workers.total()
        return render(values | self._of_the_node(alive), accept)

    def _of_the_node(self, alive: int) -> Values:
        """What is not the sum over the workers."""
        settings = self._settings
        store = "sqlite" if settings.store is None else "postgresql"
        gate = "lmdb" if settings.gate is None else "redis"
        found: dict[metrics.Gauge, dict[tuple[str, ...], float]] = {
            metrics.INFO: {(__version__, store, gate): 1},
            metrics.WORKERS: {(): alive},
            metrics.FREE_BYTES: {(): shutil.disk_usage(settings.data).free},
            metrics.LAST_BACKUP: _cell(_stat(settings.data / LAST_BACKUP, "st_mtime")),
        }
        if settings.store is None:
            for environment in ENVIRONMENTS:
                file = settings.data / f"{environment}.db"
                for gauge, path in ((metrics.STORE_BYTES, file), (metrics.WAL_BYTES, Path(f"{file}-wal"))):
                    found.setdefault(gauge, {})[environment,] = _stat(path, "st_size") or 0
        if settings.gate is None:
            found[metrics.GATE_BYTES] = _cell(_stat(settings.data / GATE_FILE, "st_size"))
        return {gauge.name: dict(cells) for gauge, cells in found.items()}


def _cell(value: float | None) -> dict[tuple[str, ...], float]:
    return {} if value is None else {(): value}


def _stat(path: Path, what: str) -> float | None:
    try:
        return float(getattr(path.stat(), what))
    except OSError:
        return None


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:  # not Linux
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
