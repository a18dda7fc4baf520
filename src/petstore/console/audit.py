"""The audit log: who did what when, filterable."""

from starlette.requests import Request
from starlette.responses import Response

from petstore.audit import ACTIONS
from petstore.console.requests import ConsoleRequest

PAGE = 50


async def audit(request: Request) -> Response:
    visit = ConsoleRequest(request)
    return visit.page("audit.html", **await _filtered(visit), actions=ACTIONS)


async def rows(request: Request) -> Response:
    """The next deeds of the table."""
    visit = ConsoleRequest(request)
    found = await _filtered(visit)
    response = visit.part("audit_rows.html", **found)
    if found["first"]:  # a new search: the address should say so, for a reload or a friend
        response.headers["hx-replace-url"] = f"/{visit.environment}/audit?{request.url.query}"
    return response


async def _filtered(visit: ConsoleRequest) -> dict[str, object]:
    who, text = visit.asked("who").strip(), visit.asked("q").strip()
    what = asked if (asked := visit.asked("what")) in ACTIONS else ""
    before = visit.number_asked("before", 0) or None
    found = await visit.store.find_entries(before=before, limit=PAGE, actor=who, action=what, text=text)
    return {"who": who, "what": what, "q": text, "found": found, "first": before is None}
