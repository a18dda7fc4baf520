"""The overview: requests over time, refusals and bans, the busiest keys, animals by status."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from petstore.admin.charts import Bars, traffic_bars
from petstore.console.requests import ConsoleRequest
from petstore.usage import SPANS


async def overview(request: Request) -> Response:
    visit = ConsoleRequest(request)
    return visit.page("overview.html", **await _figures(visit))


async def figures(request: Request) -> Response:
    """The part that the page asks for again and again."""
    visit = ConsoleRequest(request)
    return visit.part("overview_figures.html", **await _figures(visit), refreshed=True)


async def _figures(visit: ConsoleRequest) -> dict[str, Any]:
    shared, environment, span = visit.shared, visit.environment, visit.span
    bars, bans, animals, busiest = await asyncio.gather(
        traffic_bars(visit.store, SPANS[span], visit.now),
        shared.bans[environment].latest(),
        shared.animals[environment].latest(),
        shared.busiest[environment, span].latest(),
    )
    keys = await visit.store.keys_by_id([total.key_id for total in busiest.value]) if busiest else {}
    return {
        "span": span,
        "bars": bars,
        "series": series(bars),
        "bans": bans and len(bans.value),
        "animals": animals,
        "busiest": busiest,
        "keys": keys,
    }


def series(bars: Bars) -> dict[str, Any]:
    """What the script that plots wants."""
    return {"starts": bars.starts, "seconds": bars.seconds, "answers": bars.answers}
