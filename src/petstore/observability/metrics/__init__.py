"""What is measured: every metric, once. The numbers are plain and belong to this process, as the log does.

Whoever owns a thing counts it, in the event loop's thread. `shared.py` adds up the workers of a node,
`prometheus.py` writes what a scrape reads, docs/metrics.md says what each is good for.
"""

from bisect import bisect_left
from collections.abc import Sequence

Labels = tuple[str, ...]


class _Metric:
    def __init__(self, name: str, about: str, *labels: str) -> None:
        self.name = name
        self.about = about
        self.labels = labels


class Counter(_Metric):
    """Only ever grows. Its name in a scrape ends in _total."""

    def __init__(self, name: str, about: str, *labels: str) -> None:
        super().__init__(name, about, *labels)
        self.cells: dict[Labels, float] = {}

    def add(self, *labels: str, by: float = 1) -> None:
        self.cells[labels] = self.cells.get(labels, 0) + by


class Gauge(_Metric):
    """Goes up and down. What a node shows is the sum over its workers."""

    def __init__(self, name: str, about: str, *labels: str) -> None:
        super().__init__(name, about, *labels)
        self.cells: dict[Labels, float] = {}

    def set(self, value: float, *labels: str) -> None:
        self.cells[labels] = value


class Histogram(_Metric):
    """How many values fell below each bound. A cell has one count per bucket, one above all bounds, and the sum."""

    def __init__(self, name: str, about: str, bounds: Sequence[float], *labels: str) -> None:
        super().__init__(name, about, *labels)
        self.bounds = bounds
        self.cells: dict[Labels, list[float]] = {}

    def observe(self, value: float, *labels: str) -> None:
        cell = self.cell(*labels)
        cell[bisect_left(self.bounds, value)] += 1
        cell[-1] += value

    def cell(self, *labels: str) -> list[float]:
        """For those who cannot spare the time of a call to `observe`."""
        return self.cells.setdefault(labels, [0] * (len(self.bounds) + 2))


_SECONDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

REQUESTS = Counter("petstore_requests", "Requests answered.", "environment", "operation", "status", "plan")
REQUEST_SECONDS = Histogram(
    "petstore_request_seconds", "From the head of a request to its finished answer.", _SECONDS, "operation"
)
ADMISSIONS = Counter(
    "petstore_admissions", "What the gate decided on keys and on addresses.", "environment", "subject", "outcome"
)
PAGE_CACHE = Counter("petstore_page_cache", "Pages and animals taken from memory or not.", "environment", "result")
REJECTED = Counter("petstore_rejected_messages", "What never became a request.", "status")
CONNECTIONS = Gauge("petstore_connections", "Open connections.")

STORE_ERRORS = Counter("petstore_store_errors", "Calls that the store could not answer.", "environment", "access")
STORE_OUTAGES = Counter("petstore_store_outages", "Times that the store went down.", "environment", "access")
STORE_DOWN = Gauge("petstore_store_down", "Workers that the store does not answer.", "environment", "access")
STORE_BATCH = Histogram("petstore_store_batch_size", "Writes that one commit served.", _SIZES, "environment")
STORE_QUEUE = Gauge("petstore_store_queue", "Writes that wait for their commit.", "environment")
STORE_BYTES = Gauge("petstore_store_bytes", "Size of the store's file.", "environment")
WAL_BYTES = Gauge("petstore_store_wal_bytes", "Size of the store's write-ahead log.", "environment")

GATE_ERRORS = Counter("petstore_gate_errors", "Steps that the gate could not take.")
GATE_OUTAGES = Counter("petstore_gate_outages", "Times that the gate went down.")
GATE_DOWN = Gauge("petstore_gate_down", "Workers that the gate does not answer.")
GATE_BATCH = Histogram("petstore_gate_batch_size", "Requests that one step of Redis served.", _SIZES)
GATE_QUEUE = Gauge("petstore_gate_queue", "Requests that wait for Redis.")
GATE_BYTES = Gauge("petstore_gate_bytes", "Size of the gate's file.")

LOOP_LAG = Histogram("petstore_loop_lag_seconds", "How late a worker was for its chore of each second.", _SECONDS)
CPU_SECONDS = Counter("petstore_cpu_seconds", "Processor time of the workers.")
MEMORY_BYTES = Gauge("petstore_memory_bytes", "Resident memory of the workers.")
WORKERS = Gauge("petstore_workers", "Workers that run.")
WORKER_STARTS = Counter("petstore_worker_starts", "Workers that were started; more than at the start: some died.")
FREE_BYTES = Gauge("petstore_free_bytes", "Free space where the data folder is.")
LAST_BACKUP = Gauge("petstore_last_backup_timestamp_seconds", "When the last backup was finished.")
INFO = Gauge("petstore_info", "Always 1; the labels tell what runs.", "version", "store", "gate")

Metric = Counter | Gauge | Histogram
METRICS: tuple[Metric, ...] = tuple(
    each for each in globals().values() if isinstance(each, Counter | Gauge | Histogram)
)


def reset() -> None:
    """For a new worker: what its parent counted before the fork is not its own."""
    for metric in METRICS:
        metric.cells.clear()
