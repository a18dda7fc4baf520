"""The console's ASGI application and its routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from petstore.console import audit, keys, operators, pet_files, pets, usage
from petstore.console.background import Jobs
from petstore.console.error_pages import http_error, internal_error, unavailable
from petstore.console.requests import ConsoleRequest, Handler
from petstore.console.security import SecurityMiddleware
from petstore.console.sign_in import HOME, record_other_failures, sign_in, sign_out, sign_out_everywhere
from petstore.console.state import ConsoleState
from petstore.errors import Unavailable
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.settings import Settings
from petstore.store import Store

PAGE_TIMEOUT = 10.0  # seconds; applies only to GET requests


def _route(method: str, path: str, handler: Handler, *, for_viewers: bool = True) -> Route:
    async def endpoint(request: Request) -> Response:
        if not for_viewers and request.scope["session"].role == "viewer":
            raise HTTPException(403)
        try:
            async with asyncio.timeout(PAGE_TIMEOUT if method == "GET" else None):
                return await handler(ConsoleRequest(request))
        except TimeoutError as error:
            raise Unavailable("the store did not respond in time") from error

    return Route(path, endpoint, methods=[method])


_get, _post = partial(_route, "GET"), partial(_route, "POST")
_form = partial(_route, "GET", for_viewers=False)  # a page that contains only a form, which viewers cannot use


def _page(
    path: str, content: Callable[[ConsoleRequest], Awaitable[dict[str, Any]]], template: str, part: str
) -> list[Route]:
    """Returns one route for a page and one for the part of it that htmx loads (refreshed data or more table rows)."""

    async def show(request: ConsoleRequest) -> Response:
        return request.page(template, **await content(request))

    async def load(request: ConsoleRequest) -> Response:
        return request.loaded_part(part, path, **await content(request))

    name = part.rpartition("/")[2].removesuffix(".html")
    return [_get(path, show), _get(f"{path}/{name}", load)]


async def _help(request: ConsoleRequest) -> Response:
    return request.page("help.html")


ROUTES = [
    *_page("/overview", usage.overview, "overview/show.html", "overview/refresh.html"),
    _get("/animals", pets.page),
    _post("/animals", pets.add),
    _get("/animals/rows", pets.rows),
    _post("/animals/selected", pets.change_selected),
    _post("/animals/restore", pets.restore),
    _post("/animals/import", pet_files.start_import),
    _post("/animals/export", pet_files.start_export),
    *_page("/animals/imports", pet_files.imports, "imports/list.html", "imports/rows.html"),
    _get("/animals/imports/{import_id}", pet_files.show_import),
    _post("/animals/imports/{import_id}/undo", pet_files.undo_import),
    _get("/animals/{pet_id}", pets.show),
    _post("/animals/{pet_id}", pets.edit),
    _get("/animals/{pet_id}/history", pets.history),
    _post("/animals/{pet_id}/remove", pets.remove),
    _get("/jobs/{job_id}", pet_files.show_job),
    _post("/jobs/{job_id}", pet_files.answer_job),
    _get("/jobs/{job_id}/file", pet_files.download),
    *_page("/keys", keys.content, "keys/list.html", "keys/rows.html"),
    _post("/keys", keys.create),
    _form("/keys/new", keys.show_new),
    _form("/keys/identify", keys.identify_page),
    _post("/keys/identify", keys.identify),
    _get("/keys/{key_id}", keys.show),
    _post("/keys/{key_id}", keys.change),
    _get("/keys/{key_id}/refresh", keys.refresh),
    _get("/keys/{key_id}/history", keys.history),
    _post("/keys/{key_id}/rotate", keys.rotate),
    _post("/keys/{key_id}/end-old-secret", keys.end_old_secret),
    _post("/keys/{key_id}/suspend", keys.suspend),
    _post("/keys/{key_id}/resume", keys.resume),
    _form("/keys/{key_id}/revoke", keys.confirm_revoke),
    _post("/keys/{key_id}/revoke", keys.revoke),
    *_page("/bans", keys.bans, "bans/list.html", "bans/refresh.html"),
    _post("/bans/{key_id}/lift", keys.lift),
    *_page("/bills", usage.bills, "bills/list.html", "bills/rows.html"),
    _get("/bills/export", usage.export_bill),
    *_page("/deprecated", usage.deprecated, "deprecated/list.html", "deprecated/rows.html"),
    _get("/deprecated/export", usage.export_deprecated),
    *_page("/audit", audit.content, "audit/list.html", "audit/rows.html"),
    _get("/operators", operators.page),
    _post("/operators", operators.add),
    _post("/operators/role", operators.set_role),
    _post("/operators/revoke", operators.revoke),
    _get("/help", _help),
    *_page("/health", lambda request: request.state.node.content(), "health/show.html", "health/refresh.html"),
]


class Console(NamedTuple):
    """A running console. `sign_in_url` contains a one-time token."""

    app: ASGIApp
    sign_in_url: str


@contextlib.asynccontextmanager
async def open_console(
    settings: Settings, service_url: str, stores: dict[Environment, Store], gate: Gate, clock: Callable[[], float]
) -> AsyncIterator[Console]:
    """Opens the console. The stores and the gate must already be open."""
    async with Jobs() as jobs:
        state = ConsoleState(stores, gate, clock, settings, service_url, jobs)
        yield Console(_app(state), f"{state.origin.url}/sign-in?token={state.sessions.new_link_token()}")
        await record_other_failures(state)


def _app(state: ConsoleState) -> ASGIApp:
    app = Starlette(
        routes=[
            Route("/", _home),
            Route("/sign-in", sign_in, methods=["GET", "POST"]),
            Route("/sign-out", sign_out, methods=["POST"]),
            Route("/sign-out/everywhere", sign_out_everywhere, methods=["POST"]),
            Route("/docs", _reference),
            Route("/static/{name:path}", state.renderer.static),
            Mount("/{environment}", routes=ROUTES),
        ],
        exception_handlers={HTTPException: http_error, Unavailable: unavailable, Exception: internal_error},
    )
    return SecurityMiddleware(app, state)


async def _home(request: Request) -> Response:
    return RedirectResponse(HOME)


async def _reference(request: Request) -> Response:
    """Redirects to the service's API reference."""
    state: ConsoleState = request.scope["console"]
    return RedirectResponse(f"{state.service_url}/docs")
