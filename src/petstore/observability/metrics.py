"""Defines the metrics. Components update plain numbers, which each worker passes to prometheus-client every second.

Each process has its own numbers and updates them only in the event loop's thread, so they need no locks.
docs/reference/metrics.md is generated from this file.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Generic, Literal, TypeVar

Cell = TypeVar("Cell")
Labels = tuple[str, ...]
Sample = tuple[str, Labels, float]  # name, label values, number


class Metric(Generic[Cell]):
    kind: Literal["counter", "gauge", "histogram"]

    def __init__(self, name: str, about: str, *labels: str) -> None:
        self.name = name
        self.about = about
        self.labels = labels
        self.cells: dict[Labels, Cell] = {}


class Counter(Metric[float]):
    """A number that only increases. `cells` contains the increases since the last call to `take`."""

    kind = "counter"

    def add(self, *labels: str, by: float = 1) -> None:
        self.cells[labels] = self.cells.get(labels, 0) + by

    def take(self) -> Iterator[Sample]:
        """Yields the increases since the last call and resets them."""
        yield from ((self.name, labels, number) for labels, number in self.cells.items())
        self.cells.clear()


class Gauge(Metric[float]):
    """A number that can go up and down. `mode` determines how the running workers' values are merged.

    A gauge with the mode `node` describes the whole node, and is set before each scrape.
    """

    kind = "gauge"

    def __init__(
        self, name: str, about: str, *labels: str, mode: Literal["livesum", "livemax", "livemin", "node"] = "livesum"
    ) -> None:
        super().__init__(name, about, *labels)
        self.mode = mode

    def set(self, value: float, *labels: str) -> None:
        self.cells[labels] = value

    def take(self) -> Iterator[Sample]:
        """Returns the current values."""
        return ((self.name, labels, value) for labels, value in self.cells.items())


class Histogram(Metric[list[float]]):
    """Counts values in buckets. Each cell contains a count for each bucket, followed by the sum of all values."""

    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float], *labels: str) -> None:
        super().__init__(name, about, *labels)
        self.bounds = bounds

    def observe(self, value: float, *labels: str, times: int = 1) -> None:
        cell = self.cells.setdefault(labels, [0] * (len(self.bounds) + 2))
        cell[bisect_left(self.bounds, value)] += times
        cell[-1] += value * times

    def take(self) -> Iterator[Sample]:
        """Yields the counts since the last call and resets them. Each bucket's last label is its upper bound."""
        for labels, cell in self.cells.items():
            for bound, count in zip((*self.bounds, float("inf")), cell[:-1], strict=True):
                yield f"{self.name}_bucket", (*labels, str(bound)), count
            yield f"{self.name}_sum", labels, cell[-1]
        self.cells.clear()


_SECONDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

REQUESTS = Counter(
    "petstore_requests_total",
    "Completed requests. Operation `other` covers OPTIONS and unknown paths or methods; `site` covers paths outside "
    "the base addresses. Plan `none` means no valid key.",
    "environment", "operation", "status", "plan",
)  # fmt: skip
REQUEST_SECONDS = Histogram(
    "petstore_request_duration_seconds",
    "Time from the first byte of a request until its response is ready.",
    _SECONDS,
    "operation",
)
ADMISSIONS = Counter(
    "petstore_admissions_total",
    "The gate's decisions: admitted, refused (429) or banned. Subject `address` means no valid key.",
    "environment", "subject", "outcome",
)  # fmt: skip
PAGE_CACHE = Counter(
    "petstore_page_cache_total", "Pages served from memory (hit) or read from the store (miss).",
    "environment", "result",
)  # fmt: skip
REJECTED = Counter(
    "petstore_rejected_messages_total",
    "Messages rejected as invalid requests, for example because of bad framing (400) or large headers (431). "
    "Built-in server only.",
    "status",
)
SIMULATED = Counter(
    "petstore_simulated_errors_total",
    "Simulated errors, which clients request on staging with Prefer. Not included in other request metrics.",
    "code",
)
CONNECTIONS = Gauge("petstore_connections", "Open connections. Built-in server only.")
REFUSED_CONNECTIONS = Counter(
    "petstore_refused_connections_total",
    "Connections refused or closed because of a limit. Reason: per_address, total or memory.",
    "reason",
)
CERTIFICATE_EXPIRY = Gauge(
    "petstore_certificate_expiry_timestamp_seconds",
    "Time when the TLS certificate in use expires. Absent without TLS.",
    mode="livemin",
)  # fmt: skip

KEYS_EXPIRING = Gauge(
    "petstore_keys_expiring", "Keys that expire within 14 days and are not revoked.", "environment", mode="livemax"
)

STORE_ERRORS = Counter(
    "petstore_store_errors_total",
    "Failed calls to the store. A failed commit counts once, even if it contains several requests' writes.",
    "environment", "access",
)  # fmt: skip
STORE_OUTAGES = Counter(
    "petstore_store_outages_total", "How often the store went down. Each worker counts separately.",
    "environment", "access",
)  # fmt: skip
STORE_DOWN = Gauge(
    "petstore_store_down", "Workers that cannot reach the store. Access: read or write.",
    "environment", "access",
)  # fmt: skip
STORE_BATCH = Histogram("petstore_store_batch_size", "Writes per commit.", _SIZES, "environment")
STORE_QUEUE = Gauge(
    "petstore_store_queue", "Writes waiting to be committed. Each worker allows at most 10,000.", "environment"
)
STORE_BYTES = Gauge("petstore_store_bytes", "Size of the SQLite file.", "environment", mode="node")
WAL_BYTES = Gauge(
    "petstore_store_wal_bytes", "Size of SQLite's write-ahead log. It grows while a backup runs.", "environment",
    mode="node",
)  # fmt: skip

GATE_ERRORS = Counter("petstore_gate_errors_total", "Failed calls to the gate. A call can contain several decisions.")
GATE_OUTAGES = Counter("petstore_gate_outages_total", "How often the gate went down. Each worker counts separately.")
GATE_DOWN = Gauge("petstore_gate_down", "Workers that cannot reach the gate.")
GATE_BATCH = Histogram("petstore_gate_batch_size", "Requests per call to Redis.", _SIZES)
GATE_QUEUE = Gauge("petstore_gate_queue", "Requests waiting for Redis.")
GATE_BYTES = Gauge("petstore_gate_bytes", "Size of the gate file. Absent with Redis.", mode="node")

WORKERS = Gauge("petstore_workers", "Running workers.")
WORKER_STARTS = Counter(
    "petstore_worker_starts_total",
    "Workers started since the service started. Exceeds `petstore_workers` if workers died or a reload replaced them.",
)
LOOP_LAG = Histogram(
    "petstore_loop_lag_seconds",
    "How late a worker's one-second timer fires. Requests are delayed by the same amount of time.",
    _SECONDS,
)  # fmt: skip
FREE_BYTES = Gauge("petstore_free_bytes", "Free space on the disk that contains the data directory.", mode="node")
LAST_BACKUP = Gauge(
    "petstore_last_backup_timestamp_seconds", "Time when the last backup finished. Absent before the first backup.",
    mode="node",
)  # fmt: skip
BUILD_INFO = Gauge(
    "petstore_build_info", "Always 1. The labels describe the installation.", "version", "store", "gate", mode="node"
)
CPU_SECONDS = Counter("process_cpu_seconds_total", "CPU time used by all workers.")
MEMORY_BYTES = Gauge("process_resident_memory_bytes", "Resident memory used by all workers.")
START_TIME = Gauge("process_start_time_seconds", "Time when the oldest worker started.", mode="livemin")
OPEN_FDS = Gauge(
    "process_open_fds",
    "Highest number of file descriptors that any one worker has open. Requires Linux 6.2 or newer.",
    mode="livemax",
)
MAX_FDS = Gauge("process_max_fds", "File descriptors that one worker may open.", mode="livemin")

METRICS: tuple[Counter | Gauge | Histogram, ...] = tuple(
    metric for metric in globals().values() if isinstance(metric, Counter | Gauge | Histogram)
)


def reset() -> None:
    """Resets all metrics, so that a new worker does not report values inherited from its parent process."""
    for metric in METRICS:
        metric.cells.clear()
