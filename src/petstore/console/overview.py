"""The overview: requests over time, refusals and bans, the busiest keys, animals by status."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from petstore.console.room import Room
from petstore.figures import Bars, traffic_bars
from petstore.ledger import SPANS


async def overview(request: Request) -> Response:
    room = Room(request)
    return room.page("overview.html", **await _figures(room))


async def figures(request: Request) -> Response:
    """The part that the page asks for again and again."""
    room = Room(request)
    return room.part("overview_figures.html", **await _figures(room), refreshed=True)


async def _figures(room: Room) -> dict[str, Any]:
    house, environment, span = room.house, room.environment, room.span
    bars, bans, animals, busiest = await asyncio.gather(
        traffic_bars(room.store, SPANS[span], room.now),
        house.bans[environment].latest(),
        house.animals[environment].latest(),
        house.busiest[environment, span].latest(),
    )
    keys = await room.store.keys_by_id([total.key_id for total in busiest.value]) if busiest else {}
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
