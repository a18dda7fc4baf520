"""Writes a worker's metrics once a second, and renders the node's metrics when they are scraped."""

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import Callable
from pathlib import Path

from petstore.observability import metrics, multiprocess
from petstore.observability.logs import bugs_logged, event


class Monitoring:
    def __init__(self, directory: Path, measure_node: Callable[[], None]) -> None:
        """`measure_node` updates the gauges that describe the node. It is called in a thread for each scrape."""
        metrics.reset()
        metrics.WORKERS.set(1)
        metrics.WORKER_STARTS.add()
        metrics.START_TIME.set(time.time())
        metrics.MAX_FDS.set(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._directory = directory
        self._measure_node = measure_node
        self._worker: multiprocess.WorkerMetrics | None = None
        self._failed = False
        self._one_at_a_time = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        self._cpu_seconds = 0.0

    def tick(self, late: float) -> None:
        """Records the loop lag and starts writing the metrics. Called once a second.

        `late` is the delay of this call in seconds.
        """
        metrics.LOOP_LAG.observe(max(0.0, late))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        async with self._one_at_a_time:
            if self._worker is not None:
                self._worker.close()
                self._worker = None

    async def scrape(self, accept: str) -> tuple[str, bytes]:
        """Returns the media type and the body of the response to a scrape."""
        await self._write()
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._render, accept)

    async def _write(self) -> None:
        """Writes this worker's metrics. If that fails, the worker keeps serving and tries again later."""
        async with self._one_at_a_time:
            with bugs_logged():
                try:
                    if self._worker is None:  # use a thread, because importing prometheus_client is slow
                        self._worker = await asyncio.to_thread(multiprocess.WorkerMetrics, self._directory)
                    self._measure_process()
                    self._worker.write()
                except OSError as error:
                    if not self._failed:
                        event(
                            logging.ERROR, "metrics not written", cause=str(error), effect="will try again every second"
                        )
                    self._failed = True

    def _measure_process(self) -> None:
        spent = time.process_time()
        metrics.CPU_SECONDS.add(by=spent - self._cpu_seconds)
        self._cpu_seconds = spent
        with contextlib.suppress(OSError):  # not Linux
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            metrics.MEMORY_BYTES.set(pages * resource.getpagesize())
            if open_fds := Path("/proc/self/fd").stat().st_size:
                metrics.OPEN_FDS.set(open_fds)

    def _render(self, accept: str) -> tuple[str, bytes]:
        self._measure_node()
        return multiprocess.render(self._directory, accept)
