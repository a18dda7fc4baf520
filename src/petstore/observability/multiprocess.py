"""Merges the metrics of a node's workers, using prometheus-client's multiprocess mode.

Each running worker locks a numbered slot. prometheus-client uses that number in place of a process id. When a worker
dies, a new worker takes over its slot and continues its counters. So counters never decrease while the service runs,
and the number of files depends only on how many workers run at the same time.

prometheus_client is imported on demand, because importing it is slow.
"""

import contextlib
import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from petstore.files import open_file
from petstore.observability.metrics import METRICS, Gauge, Labels, Metric
from petstore.operations import COUNTED

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

# The files in each slot and their sizes, which are large enough for all combinations of labels. Their disk space is
# allocated on startup, because prometheus-client maps the files into memory. If the disk were full, a write to an
# unallocated page would kill the worker. Counters take about 100 KiB per operation, and histograms about 6 KiB.
_OPERATIONS = len(COUNTED) + 1  # including `site`
SIZES = {"counter": _OPERATIONS * (112 << 10), "histogram": _OPERATIONS * (12 << 10),
         "gauge_livesum": 16 << 10, "gauge_livemax": 16 << 10, "gauge_livemin": 16 << 10}  # fmt: skip
LOCK = "lock"  # each running worker holds a shared lock on this file

_NODE_GAUGES = [metric for metric in METRICS if isinstance(metric, Gauge) and metric.mode == "node"]
_WORKER_METRICS = [metric for metric in METRICS if metric not in _NODE_GAUGES]


class WorkerMetrics:
    """Writes this worker's metrics."""

    def __init__(self, directory: Path) -> None:
        """Takes a slot and allocates its files. Raises OSError."""
        from prometheus_client.multiprocess import mark_process_dead
        from prometheus_client.values import MultiProcessValue

        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        with contextlib.ExitStack() as locks:
            locks.enter_context(_locked(directory / LOCK, fcntl.LOCK_SH))
            self._slot = _take_free_slot(directory, locks)
            self._heartbeat = directory / f"{self._slot}.lock"
            # Send a heartbeat first, because the worker keeps serving even if allocation fails.
            os.utime(self._heartbeat)
            mark_process_dead(self._slot, directory)  # type: ignore[no-untyped-call]  # not annotated
            for name, size in SIZES.items():
                _allocate(directory / f"{name}_{self._slot}.db", size)
            self._locks = locks.pop_all()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
        self._directory = directory
        self._value_class: Any = MultiProcessValue(lambda: self._slot)  # type: ignore[no-untyped-call]  # not annotated
        self._values: dict[tuple[str, Labels], Any] = {}

    def write(self) -> None:
        """Writes all metrics.

        Bypasses prometheus-client's Counter, Gauge and Histogram, and uses their underlying value class with the same
        names and files. A Histogram accepts only one observation at a time, which would add 1 µs to each request.
        """
        for metric in _WORKER_METRICS:
            for name, labels, number in metric.take():
                value = self._values.get((name, labels))
                if value is None:
                    value = self._values[name, labels] = self._new_value(metric, name, labels)
                if isinstance(metric, Gauge):
                    value.set(number)
                else:
                    value.inc(number)
        os.utime(self._heartbeat)

    def _new_value(self, metric: Metric[Any], name: str, labels: Labels) -> Any:
        family = metric.name.removesuffix("_total")
        label_names = (*metric.labels, "le")[: len(labels)]  # only histogram buckets have the label `le`
        mode = metric.mode if isinstance(metric, Gauge) else ""
        return self._value_class(metric.kind, family, name, label_names, labels, metric.about, multiprocess_mode=mode)

    def close(self) -> None:
        """Writes all metrics and removes this worker's gauges. Its counters remain in the totals."""
        from prometheus_client.multiprocess import mark_process_dead

        self.write()
        self._value_class.close_all_files()
        mark_process_dead(self._slot, self._directory)  # type: ignore[no-untyped-call]  # not annotated
        self._locks.close()


def last_heartbeat(directory: Path) -> float | None:
    """Returns the Unix time of the latest heartbeat from any worker, or None if there was none.

    Workers send a heartbeat every second.
    """
    if not directory.is_dir():
        return None
    times: list[float] = []
    for path in directory.glob("*.lock"):
        with contextlib.suppress(FileNotFoundError):  # a service that is starting may have removed the file
            times.append(path.stat().st_mtime)
    return max(times, default=None)


def remove_old_numbers(directory: Path) -> None:
    """Removes metrics from an earlier run, unless another service's workers are using the directory. Raises OSError."""
    if directory.is_dir():
        with contextlib.suppress(BlockingIOError), _locked(directory / LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB):
            for path in directory.iterdir():
                if path.name != LOCK:
                    path.unlink()


def render(directory: Path, accept: str) -> tuple[str, bytes]:
    """Returns the media type and the body of the response to a scrape."""
    from prometheus_client.exposition import choose_encoder

    encode, media_type = choose_encoder(accept)
    return media_type, encode(merged(directory))


def merged(directory: Path) -> "CollectorRegistry":
    """Returns the merged metrics of all workers, and the gauges that describe the node."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

    registry = CollectorRegistry()
    registry.register(_NodeGauges())
    if directory.is_dir():
        for path in directory.glob("*.lock"):
            # Remove a killed worker's gauges while holding its slot's lock, so that no new worker can take the slot.
            with contextlib.suppress(BlockingIOError), _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                mark_process_dead(path.stem, directory)  # type: ignore[no-untyped-call]  # not annotated
        MultiProcessCollector(registry, directory)  # type: ignore[no-untyped-call]  # not annotated
    return registry


class _NodeGauges:
    def collect(self) -> Iterator["GaugeMetricFamily"]:
        from prometheus_client.core import GaugeMetricFamily

        for gauge in _NODE_GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.about, labels=gauge.labels)
            for _, labels, value in gauge.take():
                family.add_metric(labels, value)
            yield family


def _allocate(path: Path, size: int) -> None:
    """Allocates disk space for a file. Raises OSError.

    On failure, removes the file if it is empty, because an empty file would make every scrape fail.
    """
    with _opened(path) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            if not os.fstat(file.fileno()).st_size:
                path.unlink()
            raise


def _opened(path: Path) -> IO[bytes]:
    """Opens a file, and creates it if it does not exist. Raises OSError."""
    return os.fdopen(open_file(path), "rb+")


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    """Holds a lock on a file. Raises OSError.

    With LOCK_NB, raises BlockingIOError if another process holds the lock.
    """
    with _opened(path) as file:
        fcntl.flock(file, how)
        yield


def _take_free_slot(directory: Path, locks: contextlib.ExitStack) -> int:
    for slot in itertools.count():
        with contextlib.suppress(BlockingIOError):
            locks.enter_context(_locked(directory / f"{slot}.lock", fcntl.LOCK_EX | fcntl.LOCK_NB))
            break
    return slot
