"""Charts: usage as bars, for the plots of the console and the sparklines of the command line."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from petstore.operations import OperationName
from petstore.store.usage import Usage
from petstore.usage import RESPONSE_CLASSES, ResponseClass, Span


class Bars(NamedTuple):
    """Requests by class of response, in bars of `seconds` that begin at `starts`."""

    starts: list[int]
    seconds: int
    requests: dict[ResponseClass, list[int]]

    def totals(self) -> list[int]:
        return [sum(bar) for bar in zip(*self.requests.values(), strict=True)]

    def sum_of(self, *classes: ResponseClass) -> int:
        """The requests of these classes in all bars; without an argument, of all classes."""
        return sum(sum(self.requests[each]) for each in classes or RESPONSE_CLASSES)


async def total_bars(usage: Usage, span: Span, now: float) -> Bars:
    """The requests of all keys, and those without a valid key. Raises Unavailable."""
    rows = await usage.totals(interval=span.total_interval, since=span.since(now))
    return bars_of(rows, span.bars(now, span.bar), span.bar)


async def key_bars(
    usage: Usage, key_ids: Sequence[str], span: Span, now: float, operation: OperationName | None = None
) -> dict[str, Bars]:
    """The requests of each of these keys, or those for one operation. Raises Unavailable."""
    starts = span.bars(now, span.usage_interval)
    found = await usage.of_keys(key_ids, span.usage_interval, starts, operation)
    rows: dict[str, list[tuple[int, ResponseClass, int]]] = {key_id: [] for key_id in key_ids}
    for key_id, start, response, requests in found:
        rows[key_id].append((start, response, requests))
    return {key_id: bars_of(some, span.bars(now, span.key_bar), span.key_bar) for key_id, some in rows.items()}


def bars_of(rows: Iterable[tuple[int, ResponseClass, int]], starts: list[int], seconds: int) -> Bars:
    """Each row added to the bar that contains its start; rows outside of all bars are left out."""
    requests: dict[ResponseClass, list[int]] = {each: [0] * len(starts) for each in RESPONSE_CLASSES}
    for start, response, count in rows:
        index = (start - starts[0]) // seconds
        if 0 <= index < len(starts):
            requests[response][index] += count
    _keep_above_zero(requests)
    return Bars(starts, seconds, requests)


def _keep_above_zero(requests: dict[ResponseClass, list[int]]) -> None:
    """Show an error as `ok` where its admission is in the bar before: there it counts as `ok`. The sums stay."""
    for bar, ok in enumerate(requests["ok"]):
        missing = max(0, -ok)
        for error in ("client_error", "server_error"):
            moved = min(missing, requests[error][bar])
            requests[error][bar] -= moved
            requests["ok"][bar] += moved
            missing -= moved
