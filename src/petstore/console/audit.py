"""The audit log: who did what when, filterable."""

from starlette.requests import Request
from starlette.responses import Response

from petstore.console.room import Room
from petstore.ledger import ACTIONS

PAGE = 50


async def audit(request: Request) -> Response:
    room = Room(request)
    return room.page("audit.html", **await _filtered(room), actions=ACTIONS)


async def rows(request: Request) -> Response:
    """The next deeds of the table."""
    room = Room(request)
    found = await _filtered(room)
    response = room.part("audit_rows.html", **found)
    if found["first"]:  # a new search: the address should say so, for a reload or a friend
        response.headers["hx-replace-url"] = f"/{room.environment}/audit?{request.url.query}"
    return response


async def _filtered(room: Room) -> dict[str, object]:
    who, text = room.asked("who").strip(), room.asked("q").strip()
    what = asked if (asked := room.asked("what")) in ACTIONS else ""
    before = room.number_asked("before", 0) or None
    found = await room.store.find_deeds(before=before, limit=PAGE, actor=who, action=what, text=text)
    return {"who": who, "what": what, "q": text, "found": found, "first": before is None}
