"""Converts usage data into bars for the console's charts and the command line's sparklines."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from petstore.operations import OperationName
from petstore.store.usage import Usage
from petstore.usage import Measure, Span

# Each bar is divided into these classes. Unlike the measures in usage data, the classes do not overlap.
ResponseClass = Literal["ok", "client_error", "unauthorized", "refused", "banned", "server_error"]
RESPONSE_CLASSES: tuple[ResponseClass, ...] = get_args(ResponseClass)


class Bars(NamedTuple):
    """The number of requests in each bar of a chart, and the totals for the whole chart.

    `starts` contains the start time of each bar, and `seconds` is the length of a bar.
    """

    starts: list[int]
    seconds: int
    requests: dict[ResponseClass, list[int]]
    sums: dict[ResponseClass, int]
    admitted: list[int]

    def totals(self) -> list[int]:
        return [sum(bar) for bar in zip(*self.requests.values(), strict=True)]

    def sum_of(self, *classes: ResponseClass) -> int:
        """Returns the number of requests in these classes, or in all classes if none are given."""
        return sum(self.sums[each] for each in classes or RESPONSE_CLASSES)


async def total_bars(usage: Usage, span: Span, now: float) -> Bars:
    """Returns bars for all requests, including requests without a valid key. Raises Unavailable."""
    rows = await usage.totals(interval=span.total_interval, since=span.since(now))
    return bars_of(rows, span.bars(now, span.bar), span.bar)


async def key_bars(
    usage: Usage, key_ids: Sequence[str], span: Span, now: float, operation: OperationName | None = None
) -> dict[str, Bars]:
    """Returns bars for each key, counting its requests to one operation or to all of them. Raises Unavailable."""
    starts = span.bars(now, span.usage_interval)
    found = await usage.of_keys(key_ids, span.usage_interval, starts, operation)
    rows: dict[str, list[tuple[int, Measure, int]]] = {key_id: [] for key_id in key_ids}
    for key_id, start, measure, requests in found:
        rows[key_id].append((start, measure, requests))
    return {key_id: bars_of(some, span.bars(now, span.key_bar), span.key_bar) for key_id, some in rows.items()}


def bars_of(rows: Iterable[tuple[int, Measure, int]], starts: list[int], seconds: int) -> Bars:
    """Groups usage rows into bars by start time. Ignores rows that start before the first bar or after the last one."""
    bars: list[Counter[Measure]] = [Counter() for _ in starts]
    sums: Counter[Measure] = Counter()
    for start, measure, count in rows:
        index = (start - starts[0]) // seconds
        if 0 <= index < len(starts):
            bars[index][measure] += count
            sums[measure] += count
    shown = [_responses(bar) for bar in bars]
    requests = {each: [bar[each] for bar in shown] for each in RESPONSE_CLASSES}
    return Bars(starts, seconds, requests, _responses(sums), [bar["admitted"] for bar in bars])


def _responses(measures: Counter[Measure]) -> dict[ResponseClass, int]:
    """Returns the number of requests in each class.

    A request can be admitted during one bar and fail during the next, so a bar can contain more errors than admitted
    requests. In that case, `ok` is 0 rather than negative.
    """
    ok = max(0, measures["admitted"] - measures["client_error"] - measures["server_error"])
    return {
        "ok": ok + measures["anonymous_ok"],
        "client_error": measures["client_error"] + measures["anonymous_client_error"],
        "unauthorized": measures["unauthorized"],
        "refused": measures["refused"] + measures["anonymous_refused"],
        "banned": measures["banned"],
        "server_error": measures["server_error"] + measures["anonymous_server_error"],
    }
