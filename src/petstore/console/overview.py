"""The overview: requests over time, refusals and bans, the busiest keys, animals by status."""

import asyncio
from typing import Any

from petstore.admin.charts import total_bars
from petstore.console.requests import ConsoleRequest
from petstore.usage import SPANS


async def content(request: ConsoleRequest) -> dict[str, Any]:
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
