"""Deprecated calls: the keys that still call getPet, so that the operator can write to their owners."""

import csv
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.responses import Response

from petstore.console.rendering import timestamp
from petstore.console.requests import ConsoleRequest
from petstore.console.state import DEPRECATED, DEPRECATED_DAYS
from petstore.keys import ApiKey
from petstore.usage import DAY, KeyTotal

PAGE_SIZE = 50
EXPORT_MAX = 100_000


class Caller(NamedTuple):
    """A key's calls of the deprecated operation. `last_day` is the start of the last day with a call."""

    key: ApiKey
    requests: int
    last_day: int


async def show_list(request: ConsoleRequest) -> Response:
    return request.page("deprecated/list.html", **await _content(request))


async def rows(request: ConsoleRequest) -> Response:
    """The next keys of the table."""
    return request.part("deprecated/rows.html", **await _content(request))


async def export(request: ConsoleRequest) -> Response:
    """All callers as CSV."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["key_id", "name", "plan", "requests", "last_call"])
    totals = await request.state.deprecated_totals(request.environment, EXPORT_MAX)
    for start in range(0, len(totals), 1_000):
        for caller in await _callers(request, totals[start : start + 1_000]):
            key = caller.key
            table.writerow([key.id, _as_cell(key.name), key.plan, caller.requests, timestamp(caller.last_day, "day")])
    headers = {"content-disposition": f'attachment; filename="{DEPRECATED}-{request.environment}.csv"'}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


async def _content(request: ConsoleRequest) -> dict[str, Any]:
    totals, start = await request.state.deprecated[request.environment].latest(), request.number("start")
    page = totals.value[start : start + PAGE_SIZE] if totals else []
    return {
        "operation": DEPRECATED,
        "days": DEPRECATED_DAYS,
        "loaded": totals is not None,
        "first": start == 0,
        "callers": await _callers(request, page),
        "next": start + PAGE_SIZE if totals and len(totals.value) > start + PAGE_SIZE else None,
        "total": len(totals.value) if totals else 0,
    }


async def _callers(request: ConsoleRequest, totals: Sequence[KeyTotal]) -> list[Caller]:
    """In the order of the totals. Raises Unavailable."""
    ids = [total.key_id for total in totals]
    keys = await request.store.keys_by_id(ids)
    today = int(request.now) // DAY * DAY
    days = range(today - (DEPRECATED_DAYS - 1) * DAY, today + 1, DAY)
    last: dict[str, int] = {}
    for usage in await request.store.usage_of(ids, DAY, days, operation=DEPRECATED):
        last[usage.key_id] = max(last.get(usage.key_id, 0), usage.start)
    return [
        Caller(keys[total.key_id], total.requests, last.get(total.key_id, days[0]))
        for total in totals
        if total.key_id in keys
    ]


def _as_cell(text: str) -> str:
    """A spreadsheet would execute a cell that begins like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
