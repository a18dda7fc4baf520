"""What a scrape reads: the numbers in Prometheus' text format, or in OpenMetrics when the scraper asks for it."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from petstore.observability.metrics import METRICS, Gauge, Histogram
from petstore.observability.metrics.shared import Values


class _Numbers(Collector):
    def __init__(self, values: Values) -> None:
        self._values = values

    def describe(self) -> list[Metric]:
        return []  # without this the registry would collect once more to find the names out

    def collect(self) -> Iterator[Metric]:
        for metric in METRICS:
            found = sorted(self._values.get(metric.name, {}).items())
            if isinstance(metric, Histogram):
                histogram = HistogramMetricFamily(metric.name, metric.about, labels=metric.labels)
                bounds = [*map(str, map(float, metric.bounds)), "+Inf"]
                for labels, cell in found:
                    if isinstance(cell, list) and len(cell) == len(bounds) + 1:
                        *counts, total = cell
                        histogram.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
                yield histogram
                continue
            kind = GaugeMetricFamily if isinstance(metric, Gauge) else CounterMetricFamily
            family = kind(metric.name, metric.about, labels=metric.labels)
            for labels, cell in found:
                if not isinstance(cell, list):
                    family.add_metric(labels, cell)
            yield family


def render(values: Values, accept: str) -> tuple[str, bytes]:
    """The media type and the body."""
    encode, media_type = choose_encoder(accept)
    registry = CollectorRegistry()
    registry.register(_Numbers(values))
    return media_type, encode(registry)
