"""Bans: list and lift."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from petstore.console.requests import ConsoleRequest
from petstore.errors import OperatorError

SHOWN = 100


async def bans(request: Request) -> Response:
    visit = ConsoleRequest(request)
    return visit.page("bans.html", known=await visit.shared.bans[visit.environment].latest(), shown=SHOWN)


async def rows(request: Request) -> Response:
    """The part that the page asks for again and again."""
    visit = ConsoleRequest(request)
    return visit.part("bans_rows.html", known=await visit.shared.bans[visit.environment].latest(), shown=SHOWN)


async def lift(request: Request) -> Response:
    visit = ConsoleRequest(request)
    key_id = request.path_params["key_id"]
    if await visit.key(key_id) is None:
        raise HTTPException(404)
    try:
        await visit.admin.lift_ban(key_id)
        visit.tell(f"{key_id} may come in again.")
    except OperatorError as error:
        visit.tell(str(error), good=False)
    visit.shared.bans[visit.environment].outdated()
    back = (await visit.form()).text("back")
    return visit.go(f"/keys/{key_id}" if back == "key" else "/bans")
