"""Bans: list and lift."""

from starlette.exceptions import HTTPException
from starlette.responses import Response

from petstore.console.requests import ConsoleRequest
from petstore.errors import OperatorError

SHOWN_MAX = 100


async def show_list(request: ConsoleRequest) -> Response:
    bans = await request.state.bans[request.environment].latest()
    return request.page("bans/list.html", bans=bans, shown_max=SHOWN_MAX)


async def refresh(request: ConsoleRequest) -> Response:
    """The part that the page loads again every few seconds."""
    bans = await request.state.bans[request.environment].latest()
    return request.part("bans/rows.html", bans=bans, shown_max=SHOWN_MAX)


async def lift(request: ConsoleRequest) -> Response:
    key_id = request.http.path_params["key_id"]
    if await request.find_key(key_id) is None:
        raise HTTPException(404)
    try:
        await request.admin.lift_ban(key_id)
        request.flash(f"The ban of {key_id} is lifted.")
    except OperatorError as error:
        request.flash(str(error), ok=False)
    request.state.bans[request.environment].invalidate()
    back = (await request.form()).text("back")
    return request.redirect(f"/keys/{key_id}" if back == "key" else "/bans")
