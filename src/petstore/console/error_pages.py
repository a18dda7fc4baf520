"""Error pages. Signed-in operators also see the console's banner and navigation."""

import logging
import secrets
import time

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from petstore.console.outages import failed_change, full_disk
from petstore.console.pet_files import UPLOAD_MAX
from petstore.console.requests import common_context
from petstore.console.sessions import Session
from petstore.console.sign_in import HOME
from petstore.console.state import ConsoleState
from petstore.errors import DiskFull, Unavailable
from petstore.keys import ENVIRONMENTS
from petstore.observability.logs import event, logger
from petstore.wording import when


def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {
        403: "Your role is viewer. You can see all data, but you cannot change anything.",
        404: "This page was not found. The record might have been removed, or it might be in the other environment.",
        405: "This address does not support that HTTP method.",
        408: "The form data took too long to arrive. Try again.",
        413: f"The form or the file is too large. The maximum file size is {UPLOAD_MAX // 2**20:,} MiB.",
    }.get(error.status_code, "The request is not valid.")
    response = error_page(request, error.status_code, text)
    response.headers.update(error.headers or {})
    return response


def unavailable(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unavailable)
    event(logging.ERROR, "unavailable", path=request.url.path, cause=str(error))
    state: ConsoleState = request.scope["console"]
    state.unavailable_since = state.unavailable_since or time.time()
    reads = request.method in ("GET", "HEAD")
    text = failed_change(error)
    if reads:
        since = f"since at least {when(state.unavailable_since)}"
        fault = f"The store or the gate has not responded {since}. Run petstore check or see the log for the cause."
        text = f"{full_disk(error) if isinstance(error, DiskFull) else fault} This page reloads automatically."
    response = error_page(request, 503, text, back="" if reads else previous_page(request))
    if reads:
        response.headers["refresh"] = "5"
    response.headers["retry-after"] = "5"
    return response


def internal_error(request: Request, error: Exception) -> Response:
    number = secrets.token_hex(4)
    logger.error("internal error", exc_info=error, extra={"fields": {"number": number, "path": request.url.path}})
    return error_page(request, 500, f"An internal error occurred. It was logged as {number}.")


def previous_page(request: Request) -> str:
    """Returns the path of the console page that sent the request, or an empty string if it is unknown."""
    state: ConsoleState = request.scope["console"]
    origin, slash, path = request.headers.get("referer", "").removeprefix(state.origin.url).partition("/")
    return f"/{path}" if slash and not origin else ""


def error_page(request: Request, status: int, text: str, back: str = "") -> Response:
    """Returns an error page. If `back` is given, a signed-in operator's page links to this path."""
    if request.headers.get("hx-request") == "true":
        return PlainTextResponse(text, status)
    state: ConsoleState = request.scope["console"]
    session: Session | None = request.scope.get("session")
    if session is None:
        return state.renderer.html("error.html", status, text=text, status=status, home=HOME)
    environment = next((each for each in ENVIRONMENTS if request.url.path.startswith(f"/{each}/")), ENVIRONMENTS[0])
    context = common_context(state, session, environment)
    section = request.url.path.removeprefix(f"/{environment}/").partition("/")[0]
    return state.renderer.html(
        "error_in_layout.html", status, **context, text=text, status=status, section=section, messages=[], back=back
    )  # fmt: skip
