"""Pages about usage: the overview, the bills, and the keys that still use deprecated operations."""

import asyncio
import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.responses import Response

from petstore.console.rendering import timestamp
from petstore.console.requests import ConsoleRequest
from petstore.console.state import DEPRECATED_DAYS
from petstore.keys import ApiKey
from petstore.operations import OperationName, deprecated_operations
from petstore.reports.bills import BILLED, CSV_COLUMNS, BilledKey, bill
from petstore.reports.charts import total_bars
from petstore.usage import SPANS, KeyTotal, calendar_month
from petstore.wording import as_cell

PAGE_SIZE = 50
EXPORT_MAX = 100_000


async def overview(request: ConsoleRequest) -> dict[str, Any]:
    state, environment, span = request.state, request.environment, request.span
    bars, bans, pet_counts, busiest = await asyncio.gather(
        total_bars(request.store.usage, SPANS[span], request.now),
        state.bans[environment].latest(),
        state.pet_counts[environment].latest(),
        state.busiest[environment, span].latest(),
    )
    keys = await request.store.keys.by_id([total.key_id for total in busiest.value]) if busiest else {}
    return {
        "span": span,
        "bars": bars,
        "bans": bans and len(bans.value),
        "pet_counts": pet_counts,
        "busiest": busiest,
        "keys": keys,
    }


async def bills(request: ConsoleRequest) -> dict[str, Any]:
    month, end, keys = await _bill(request)
    start = request.number("start")
    return {
        "month": month,
        "running": end >= request.now,
        "operations": BILLED,
        "page": keys[start : start + PAGE_SIZE],
        "next": start + PAGE_SIZE if len(keys) > start + PAGE_SIZE else None,
        "first": start == 0,
        "total": len(keys),
        "admitted": sum(each.admitted for each in keys),
    }


async def export_bill(request: ConsoleRequest) -> Response:
    """Returns the same CSV that `petstore usage --month --csv` prints for this environment."""
    month, _, keys = await _bill(request)
    return _csv([CSV_COLUMNS, *(each.csv_row() for each in keys)], f"bill-{month}-{request.environment}.csv")


async def _bill(request: ConsoleRequest) -> tuple[str, int, list[BilledKey]]:
    """Returns the requested month (by default, the current month), the time when it ends, and its bill.

    Raises Unavailable.
    """
    month = request.parameter("month")
    try:
        span, end = calendar_month(month)
    except ValueError:
        month = timestamp(request.now, "day")[: len("2026-10")]
        span, end = calendar_month(month)
    return month, end, await bill(request.store, span, end)


def _csv(rows: Iterable[Sequence[object]], name: str) -> Response:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


async def export_deprecated(request: ConsoleRequest) -> Response:
    """Returns a CSV file that lists the keys that called deprecated operations."""
    rows: list[Sequence[object]] = [["key_id", "name", "plan", "requests", "last_call", "operation"]]
    totals = await request.state.deprecated_totals(request.environment, EXPORT_MAX)
    for start in range(0, len(totals), 1_000):
        for operation, key, total in await _callers(request, totals[start : start + 1_000]):
            last = timestamp(total.last, "day")
            rows.append([key.id, as_cell(key.name), key.plan, total.requests, last, operation])
    return _csv(rows, f"deprecated-{request.environment}.csv")


async def deprecated(request: ConsoleRequest) -> dict[str, Any]:
    totals, start = await request.state.deprecated[request.environment].latest(), request.number("start")
    page = totals.value[start : start + PAGE_SIZE] if totals else []
    return {
        "operations": deprecated_operations(),
        "days": DEPRECATED_DAYS,
        "loaded": totals is not None,
        "first": start == 0,
        "callers": await _callers(request, page),
        "next": start + PAGE_SIZE if totals and len(totals.value) > start + PAGE_SIZE else None,
        "total": len(totals.value) if totals else 0,
    }


async def _callers(
    request: ConsoleRequest, totals: Sequence[tuple[OperationName, KeyTotal]]
) -> list[tuple[OperationName, ApiKey, KeyTotal]]:
    """Finds the API key for each total, dropping totals whose key no longer exists. Raises Unavailable."""
    keys = await request.store.keys.by_id([total.key_id for _, total in totals])
    return [(operation, keys[total.key_id], total) for operation, total in totals if total.key_id in keys]
