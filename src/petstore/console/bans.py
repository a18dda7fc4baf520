"""Bans: list and lift."""

from typing import Any

from starlette.responses import Response

from petstore.console.requests import ConsoleRequest

SHOWN_MAX = 100


async def content(request: ConsoleRequest) -> dict[str, Any]:
    return {"bans": await request.state.bans[request.environment].latest(), "shown_max": SHOWN_MAX}


async def lift(request: ConsoleRequest) -> Response:
    key_id = (await request.key()).id
    path = f"/keys/{key_id}" if (await request.form()).text("back") == "key" else "/bans"
    response = await request.act(request.admin.lift_ban(key_id), f"The ban of {key_id} is lifted.", path)
    request.state.bans[request.environment].invalidate()
    return response
