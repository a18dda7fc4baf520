"""The console as one ASGI application: its routes and its error pages."""

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from petstore.console import (
    audit,
    bans,
    deprecated,
    health,
    identify,
    key,
    keys,
    operators,
    overview,
    pet,
    pet_files,
    pets,
)
from petstore.console.jobs import Jobs
from petstore.console.pet_files import UPLOAD_MAX
from petstore.console.requests import ConsoleRequest, common_context
from petstore.console.security import SecurityMiddleware
from petstore.console.sessions import UNCERTAIN, Session
from petstore.console.sign_in import (
    HOME,
    find_session,
    record_other_failures,
    sign_in,
    sign_in_page,
    sign_out,
    sign_out_everywhere,
)
from petstore.console.state import ConsoleState
from petstore.errors import Unavailable
from petstore.gate import Gate
from petstore.keys import ENVIRONMENTS, Environment
from petstore.observability.logs import event, logger
from petstore.settings import Settings
from petstore.store import Store

Handler = Callable[[ConsoleRequest], Awaitable[Response]]


def _get(path: str, handler: Handler) -> Route:
    return Route(path, _endpoint(handler))


def _post(path: str, handler: Handler) -> Route:
    return Route(path, _endpoint(handler), methods=["POST"])


def _endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handler(ConsoleRequest(request))

    return endpoint


ROUTES = [
    _get("/overview", overview.show),
    _get("/overview/refresh", overview.refresh),
    _get("/animals", pets.show_list),
    _post("/animals", pets.add),
    _get("/animals/rows", pets.rows),
    _post("/animals/selected", pets.change_selected),
    _post("/animals/undo", pets.undo_removal),
    _post("/animals/import", pet_files.start_import),
    _post("/animals/export", pet_files.start_export),
    _get("/animals/{pet_id}", pet.show),
    _post("/animals/{pet_id}", pet.edit),
    _get("/animals/{pet_id}/history", pet.history),
    _post("/animals/{pet_id}/remove", pet.remove),
    _get("/jobs/{job_id}", pet_files.show_job),
    _get("/jobs/{job_id}/file", pet_files.download),
    _get("/keys", keys.show_list),
    _post("/keys", keys.create),
    _get("/keys/rows", keys.rows),
    _get("/keys/new", keys.show_new),
    _get("/keys/identify", identify.show),
    _post("/keys/identify", identify.identify),
    _get("/keys/{key_id}", key.show),
    _post("/keys/{key_id}", key.change),
    _get("/keys/{key_id}/refresh", key.refresh),
    _post("/keys/{key_id}/rotate", key.rotate),
    _post("/keys/{key_id}/suspend", key.suspend),
    _post("/keys/{key_id}/resume", key.resume),
    _get("/keys/{key_id}/revoke", key.confirm_revoke),
    _post("/keys/{key_id}/revoke", key.revoke),
    _get("/bans", bans.show_list),
    _get("/bans/refresh", bans.refresh),
    _post("/bans/{key_id}/lift", bans.lift),
    _get("/deprecated", deprecated.show_list),
    _get("/deprecated/rows", deprecated.rows),
    _get("/deprecated/export", deprecated.export),
    _get("/audit", audit.show_list),
    _get("/audit/rows", audit.rows),
    _get("/operators", operators.show_list),
    _post("/operators", operators.add),
    _post("/operators/role", operators.set_role),
    _post("/operators/revoke", operators.revoke),
    _get("/health", health.show),
    _get("/health/refresh", health.refresh),
]


class Console(NamedTuple):
    """An open console. `sign_in_url` signs in once."""

    app: ASGIApp
    sign_in_url: str


@contextlib.asynccontextmanager
async def open_console(
    settings: Settings, stores: dict[Environment, Store], gate: Gate, clock: Callable[[], float]
) -> AsyncIterator[Console]:
    """The console over open backends."""
    with Jobs() as jobs:
        state = ConsoleState(stores, gate, clock, settings, jobs)
        yield Console(_app(state), f"{state.origin.url}/sign-in?token={state.sessions.new_link_token()}")
        await record_other_failures(state)


def _app(state: ConsoleState) -> ASGIApp:
    app = Starlette(
        routes=[
            Route("/", _home),
            Route("/sign-in", sign_in, methods=["GET", "POST"]),
            Route("/sign-out", sign_out, methods=["POST"]),
            Route("/sign-out/everywhere", sign_out_everywhere, methods=["POST"]),
            Route("/static/{name:path}", state.renderer.static),
            Mount("/{environment}", routes=ROUTES),
        ],
        exception_handlers={
            HTTPException: partial(_http_error, state),
            Unavailable: partial(_unavailable, state),
            Exception: partial(_internal_error, state),
        },
    )
    app.state.console = state
    return SecurityMiddleware(
        app,
        state.origin,
        partial(find_session, state),
        partial(sign_in_page, state),
        partial(_error_page, state),
        partial(_unavailable, state),
    )


async def _home(request: Request) -> Response:
    return RedirectResponse(HOME)


def _http_error(state: ConsoleState, request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = {
        404: "There is nothing at this address. It may have been removed, or belong to the other environment.",
        405: "This address does not support that method.",
        408: "The form did not arrive in time.",
        413: f"The form or the file is too large: the maximum of a file is {UPLOAD_MAX // 2**20:,} MiB.",
    }.get(status, "The request is not valid.")
    response = _error_page(state, request, status, text)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response


def _unavailable(state: ConsoleState, request: Request, error: Exception) -> Response:
    event(logging.ERROR, "unavailable", path=request.url.path, cause=str(error))
    reads = request.method in ("GET", "HEAD")
    text = "The store or the gate does not respond. This page retries by itself." if reads else UNCERTAIN
    response = _error_page(state, request, 503, text)
    if reads:
        response.headers["refresh"] = "5"
    response.headers["retry-after"] = "5"
    return response


def _internal_error(state: ConsoleState, request: Request, error: Exception) -> Response:
    number = secrets.token_hex(4)
    logger.error("internal error", exc_info=error, extra={"fields": {"number": number, "path": request.url.path}})
    return _error_page(state, request, 500, f"An internal error occurred. The log has it under the number {number}.")


def _error_page(state: ConsoleState, request: Request, status: int, text: str) -> Response:
    if request.headers.get("hx-request") == "true":
        return PlainTextResponse(text, status)
    session: Session | None = request.scope.get("session")
    if session is None:
        return state.renderer.html("error.html", status, text=text, status=status, home=HOME)
    environment = next((each for each in ENVIRONMENTS if request.url.path.startswith(f"/{each}/")), ENVIRONMENTS[0])
    context = common_context(state, session, environment)
    section = request.url.path.removeprefix(f"/{environment}/").partition("/")[0]
    return state.renderer.html(
        "error_in_layout.html", status, **context, text=text, status=status, section=section, messages=[]
    )  # fmt: skip
