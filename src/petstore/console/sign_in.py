"""Signs operators in with the one-time link or a token, and signs them out."""

import contextlib
import logging
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from petstore.audit import Action
from petstore.console.forms import Form, read_form
from petstore.console.outages import full_disk
from petstore.console.requests import cookie_of
from petstore.console.sessions import SESSION_SECONDS, Session
from petstore.console.state import ConsoleState
from petstore.errors import DiskFull, Unavailable
from petstore.keys import digest_of
from petstore.observability.logs import event
from petstore.operators import ANONYMOUS_ACTOR, LINK_ACTOR, Operator, could_be_token
from petstore.web.client_address import client_address

HOME = "/live/overview"


async def find_session(state: ConsoleState, cookie: str, *, automatic: bool) -> Session | None:
    """Returns the cookie's session with the operator's current role, or None if there is no valid session.

    Ends the session if the operator has been revoked. Raises Unavailable.
    """
    session = state.sessions.find(cookie, automatic=automatic)
    if session is not None and session.name is not None:
        operator = await state.stores["live"].operators.get(session.name)
        # A new operator can have the same name as a revoked operator, so also compare the creation times.
        if operator is None or operator.revoked is not None or operator.created != session.operator_created:
            state.sessions.end(cookie)
            return None
        session.role = operator.role
    return session


def sign_in_page(
    request: Request, error: str = "", status: int = 401, retry_after: int = 0, target: str = ""
) -> Response:
    """Returns the sign-in page. `target` is the page to open after signing in, by default the requested page."""
    headers = {"hx-refresh": "true"}  # if htmx requested a part of a page, tells it to reload the whole page
    if retry_after:
        headers["retry-after"] = str(retry_after)
    asks_for_page = request.method == "GET" and request.url.path != "/sign-in"
    if asks_for_page and request.headers.get("sec-fetch-site") == "cross-site":
        # Browsers do not send a SameSite=Strict cookie when the user follows a link from another site,
        # but they do send it when the page is then reloaded.
        headers["refresh"] = "0"
    if asks_for_page:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    state: ConsoleState = request.scope["console"]
    return state.renderer.html("sign_in.html", status, headers, error=error, next=_local_path(target))


async def sign_in(request: Request) -> Response:
    """Signs an operator in with the one-time link's token (GET or POST) or with an operator token (POST only)."""
    state: ConsoleState = request.scope["console"]
    is_post = request.method == "POST"
    form = await read_form(request) if is_post else Form(request.query_params.multi_items())
    respond = partial(sign_in_page, request, target=form.text("next"))
    # A HEAD request, for example to create a link preview, must not use up the one-time link.
    token = "" if request.method == "HEAD" else form.text("token").strip()
    if not token:
        return respond("Enter a token." if is_post else "")
    # Whether the user opened this address directly. Requests from pages on other sites must not count as failures.
    is_direct = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    if not is_post and (could_be_token(token) or not is_direct):
        error = "This link cannot sign you in from here. Paste it into the address bar, or enter your token."
        return respond(error)
    peer = request.client.host if request.client else ""
    address = client_address(peer, ",".join(request.headers.getlist("x-forwarded-for")), state.trusted_proxies)
    if wait := state.sign_in_limits.retry_after(address, token):
        return respond(f"Too many failed sign-ins. Try again in {wait} seconds.", 429, wait)
    try:
        valid, operator = await _authenticate(state, token)
    except Unavailable as error:
        event(logging.ERROR, "unavailable", cause=str(error))
        cause = "The store is not responding."
        if isinstance(error, DiskFull):
            cause = f"{full_disk(error)} Nobody can sign in, because each sign-in must be recorded in the audit log."
        return respond(f"{cause} Try again in a moment.", 503)
    if not valid:
        state.sign_in_limits.add_failure(address, token)
        await _record_failure(state, address)
        return respond("This token is not valid, or the link has already been used.")
    response = RedirectResponse(_local_path(form.text("next")), 303)
    response.set_cookie(value=state.sessions.begin(operator), max_age=SESSION_SECONDS, **state.origin.cookie)
    return response


async def _authenticate(state: ConsoleState, token: str) -> tuple[bool, Operator | None]:
    """Returns whether the token is valid, and the operator to whom it belongs (None for the one-time link).

    Raises Unavailable if the store does not respond or the sign-in cannot be recorded in the audit log.
    """
    if could_be_token(token):
        operator = await state.stores["live"].operators.find(digest_of(token))
        if operator is None:
            return False, None
        await state.record(operator.name, "sign in", operator.name, "token")
        return True, operator
    if not state.sessions.redeem_link(token):
        return False, None
    try:
        await state.record(LINK_ACTOR, "sign in", LINK_ACTOR, "one-time link")
    except Unavailable:
        state.sessions.restore_link(token)
        raise
    return True, None


async def _record_failure(state: ConsoleState, address: str) -> None:
    others = state.failure_throttle.add(address)
    if others is not None:
        event(logging.WARNING, "sign-in failed", address=address, **({"others": others} if others else {}))
        with contextlib.suppress(Unavailable):  # the failure has already been logged
            await state.record(ANONYMOUS_ACTOR, "sign-in failed", address, _others(others))


async def record_other_failures(state: ConsoleState) -> None:
    """On shutdown, records the number of failures that have no audit entry yet."""
    if others := state.failure_throttle.take_others():
        with contextlib.suppress(Unavailable):
            await state.record(ANONYMOUS_ACTOR, "sign-in failed", "", _others(others))


def _others(count: int) -> str:
    return f"and {count:,} more since the previous entry" if count else ""


async def sign_out(request: Request) -> Response:
    state, session = request.scope["console"], request.scope["session"]
    state.sessions.end(cookie_of(request, state.origin.cookie_name))
    return await _signed_out(state, session, "sign out", "")


async def sign_out_everywhere(request: Request) -> Response:
    """Ends all of this operator's sessions in this console."""
    state, session = request.scope["console"], request.scope["session"]
    count = state.sessions.end_all_of(session)
    return await _signed_out(
        state, session, "sign out everywhere", f"{count} {'session' if count == 1 else 'sessions'}"
    )


async def _signed_out(state: ConsoleState, session: Session, action: Action, detail: str) -> Response:
    try:
        await state.record(session.actor, action, session.actor, detail)
    except Unavailable as error:  # operators must be able to sign out even if the sign-out cannot be recorded
        event(logging.ERROR, "unavailable", cause=str(error))
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(**state.origin.cookie)
    return response


def _local_path(target: str) -> str:
    """Returns the target if it is a path in this console, and the home page otherwise, to prevent open redirects."""
    is_local = target.startswith("/") and not target.startswith("//") and "\\" not in target and target.isprintable()
    return target if is_local else HOME
