"""Tracks whether the store and the gate are up. Counts outages and logs when they begin and end."""

import logging
import time
from typing import Literal

from petstore.observability import metrics
from petstore.observability.logs import event

STEADY = 1.0  # seconds without a failure before an outage ends, so that intermittent failures count as one outage

_METRICS = {
    "store": (metrics.STORE_ERRORS, metrics.STORE_OUTAGES, metrics.STORE_DOWN),
    "gate": (metrics.GATE_ERRORS, metrics.GATE_OUTAGES, metrics.GATE_DOWN),
}


class Health:
    """The health of the store or the gate. `labels` appear in metrics and log lines."""

    def __init__(self, part: Literal["store", "gate"], *labels: str) -> None:
        self.down = False
        self._part = part
        self._labels = labels
        self._errors, self._outages, self._down = _METRICS[part]
        self._began = self._failed = 0.0
        # Start at zero. Without an earlier value, Prometheus would not see the first failure as an increase.
        self._errors.add(*labels, by=0)
        self._outages.add(*labels, by=0)
        self._down.cells.setdefault(labels, 0)

    def error(self) -> None:
        """Counts a failed call without starting an outage."""
        self._errors.add(*self._labels)

    def failed(self, cause: object) -> None:
        """Counts a failed call, and starts an outage unless one has already begun."""
        self._errors.add(*self._labels)
        self._failed = time.monotonic()
        if not self.down:
            self.down = True
            self._began = self._failed
            self._outages.add(*self._labels)
            self._down.set(1, *self._labels)
            event(logging.ERROR, f"{self._part} down", **self._fields(), cause=str(cause))

    def worked(self, *, surely: bool = False) -> None:
        """Called after a successful call. Ends an outage if `surely` is true or no call has failed recently."""
        now = time.monotonic()
        if self.down and (surely or now - self._failed >= STEADY):
            self.down = False
            self._down.set(0, *self._labels)
            event(logging.WARNING, f"{self._part} back", **self._fields(), seconds=round(now - self._began, 1))

    def _fields(self) -> dict[str, str]:
        return dict(zip(self._errors.labels, self._labels, strict=True))
