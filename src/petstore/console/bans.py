"""Bans: list and lift."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from petstore.console.room import Room
from petstore.errors import OperatorError

SHOWN = 100


async def bans(request: Request) -> Response:
    room = Room(request)
    return room.page("bans.html", known=await room.house.bans[room.environment].latest(), shown=SHOWN)


async def rows(request: Request) -> Response:
    """The part that the page asks for again and again."""
    room = Room(request)
    return room.part("bans_rows.html", known=await room.house.bans[room.environment].latest(), shown=SHOWN)


async def lift(request: Request) -> Response:
    room = Room(request)
    key_id = request.path_params["key_id"]
    if await room.key(key_id) is None:
        raise HTTPException(404)
    try:
        await room.desk.lift_ban(key_id)
        room.tell(f"{key_id} may come in again.")
    except OperatorError as error:
        room.tell(str(error), good=False)
    room.house.bans[room.environment].outdated()
    back = (await room.form()).text("back")
    return room.go(f"/keys/{key_id}" if back == "key" else "/bans")
