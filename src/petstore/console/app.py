"""The console as one ASGI application: its addresses, and what happens when something goes wrong."""

import logging
import secrets
from collections.abc import Callable
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from petstore.console import animals, audit, bans, files, keys, overview
from petstore.console.files import UPLOAD_MAX
from petstore.console.guard import Addresses, Guard
from petstore.console.jobs import Jobs
from petstore.console.requests import Shared
from petstore.console.sessions import Sessions
from petstore.console.sign_in import HOME, session_of, sign_in, sign_in_page, sign_out
from petstore.errors import Unavailable
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.observability.logs import event, logger
from petstore.store import Store

ROUTES = [
    Route("/overview", overview.overview),
    Route("/overview/figures", overview.figures),
    Route("/animals", animals.animals),
    Route("/animals", animals.add, methods=["POST"]),
    Route("/animals/rows", animals.rows),
    Route("/animals/status", animals.set_status, methods=["POST"]),
    Route("/animals/import", files.start_import, methods=["POST"]),
    Route("/animals/export", files.start_export, methods=["POST"]),
    Route("/jobs/{job_id}", files.job),
    Route("/jobs/{job_id}/file", files.file),
    Route("/keys", keys.keys),
    Route("/keys", keys.create, methods=["POST"]),
    Route("/keys/rows", keys.rows),
    Route("/keys/new", keys.new),
    Route("/keys/{key_id}", keys.key),
    Route("/keys/{key_id}/figures", keys.figures),
    Route("/keys/{key_id}/rotate", keys.rotate, methods=["POST"]),
    Route("/keys/{key_id}/limits", keys.set_limits, methods=["POST"]),
    Route("/keys/{key_id}/revoke", keys.ask_revoke),
    Route("/keys/{key_id}/revoke", keys.revoke, methods=["POST"]),
    Route("/bans", bans.bans),
    Route("/bans/rows", bans.rows),
    Route("/bans/{key_id}/lift", bans.lift, methods=["POST"]),
    Route("/audit", audit.audit),
    Route("/audit/rows", audit.rows),
]


def console(
    stores: dict[Environment, Store],
    gate: Gate,
    clock: Callable[[], float],
    addresses: Addresses,
    sessions: Sessions,
    jobs: Jobs,
) -> Guard:
    shared = Shared(stores, gate, clock, addresses, sessions, jobs)
    app = Starlette(
        routes=[
            Route("/", _home),
            Route("/sign-in", sign_in, methods=["GET", "POST"]),
            Route("/sign-out", sign_out, methods=["POST"]),
            Route("/static/{name:path}", shared.pages.static),
            Mount("/{environment}", routes=ROUTES),
        ],
        exception_handlers={
            HTTPException: partial(_refused, shared),
            Unavailable: partial(_outage, shared),
            Exception: partial(_bug, shared),
        },
    )
    app.state.shared = shared
    return Guard(app, addresses, partial(session_of, shared), partial(sign_in_page, shared), partial(_outage, shared))


async def _home(request: Request) -> Response:
    return RedirectResponse(HOME)


def _refused(shared: Shared, request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = {
        404: "There is nothing at this address. It may have been removed, or belong to the other environment.",
        405: "This address does not take that kind of request.",
        413: f"The file is too large: at most {UPLOAD_MAX // 2**20:,} MiB at once.",
    }.get(status, "The request could not be understood.")
    return _say(shared, request, status, text)


def _outage(shared: Shared, request: Request, error: Exception) -> Response:
    event(logging.ERROR, "unavailable", path=request.url.path, cause=str(error))
    response = _say(shared, request, 503, "The store or the gate does not answer. It is tried again by itself.")
    if request.method == "GET":
        response.headers["refresh"] = "5"
    response.headers["retry-after"] = "5"
    return response


def _bug(shared: Shared, request: Request, error: Exception) -> Response:
    number = secrets.token_hex(4)
    logger.error("internal error", exc_info=error, extra={"fields": {"number": number, "path": request.url.path}})
    return _say(shared, request, 500, f"Something went wrong; the log has it as {number}.")


def _say(shared: Shared, request: Request, status: int, text: str) -> Response:
    if request.headers.get("hx-request") == "true":
        return PlainTextResponse(text, status)
    return shared.pages.html("error.html", status, text=text, status=status, home=HOME)
