"""Signing in and out: by the one-time link, or with an operator's token."""

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from petstore.console.requests import Form
from petstore.console.sessions import LINK_ACTOR, SESSION_SECONDS, Session, could_be_link_token
from petstore.console.state import ConsoleState
from petstore.errors import Unavailable
from petstore.keys import digest_of
from petstore.observability.logs import event
from petstore.operators import Operator, could_be_token

HOME = "/live/overview"
FORM_MAX = 64 * 1024


async def find_session(state: ConsoleState, cookie: str) -> Session | None:
    """The session of a cookie, unless its operator was revoked. Raises Unavailable."""
    session = state.sessions.find(cookie)
    if session is not None and session.name is not None:
        operator = await state.stores["live"].operator(session.name)
        # A revoked name may be given to another person: that operator was created later.
        if operator is None or operator.revoked is not None or operator.created != session.operator_created:
            state.sessions.end(cookie)
            return None
    return session


def sign_in_page(
    state: ConsoleState, request: Request, error: str = "", status: int = 401, retry_after: int = 0
) -> Response:
    headers = {"hx-refresh": "true"}  # htmx asked for a part of a page: reload the whole page
    if retry_after:
        headers["retry-after"] = str(retry_after)
    asks_for_page = request.method == "GET" and request.url.path != "/sign-in"
    if asks_for_page and request.headers.get("sec-fetch-site") == "cross-site":
        # A browser sends a strict cookie with our own reload, but not when a link on another site is followed.
        headers["refresh"] = "0"
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return state.renderer.html(
        "sign_in.html", status, headers, error=error, next=target if asks_for_page else HOME
    )  # fmt: skip


async def sign_in(request: Request) -> Response:
    """GET with the link's token, or POST with either token."""
    state: ConsoleState = request.app.state.console
    form = await _read_form(request) if request.method == "POST" else Form(request.query_params)
    token = "" if request.method == "HEAD" else form.text("token").strip()  # a link preview must not use up the link
    address = request.client.host if request.client else ""
    if not token:
        error = "Enter a token." if request.method == "POST" else ""
        return sign_in_page(state, request, error, 401)
    if request.method == "GET" and not (_is_direct_navigation(request) and could_be_link_token(token)):
        error = "This link does not sign in from here. Paste it into the address bar, or enter your token."
        return sign_in_page(state, request, error, 401)
    if wait := state.sign_in_limits.retry_after(address):
        return sign_in_page(state, request, f"Too many failed sign-ins. Try again in {wait} seconds.", 429, wait)
    try:
        valid, operator = await _authenticate(state, token)
    except Unavailable as error:
        event(logging.ERROR, "unavailable", cause=str(error))
        return sign_in_page(state, request, "The store does not respond. Try again in a moment.", 503)
    if not valid:
        state.sign_in_limits.add_failure(address)
        event(logging.WARNING, "sign-in failed", address=address)
        return sign_in_page(state, request, "This token is not valid, or the link was used before.", 401)
    cookie = state.sessions.begin(operator)
    response = RedirectResponse(_local_path(form.text("next")), 303)
    response.set_cookie(
        state.origin.cookie_name, cookie, SESSION_SECONDS, path="/",
        httponly=True, samesite="strict", secure=state.origin.secure,
    )  # fmt: skip
    return response


async def _read_form(request: Request) -> Form:
    """Raises HTTPException for a body larger than a sign-in needs: the client has no session yet."""
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > FORM_MAX:
        raise HTTPException(400)
    return Form(await request.form(max_files=0))


def _is_direct_navigation(request: Request) -> bool:
    """Whether the user opened this address. Requests that another site's page makes must not count as failures."""
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")


async def _authenticate(state: ConsoleState, token: str) -> tuple[bool, Operator | None]:
    """Whether the token is valid, and its operator; the link has none. Raises Unavailable.

    A sign-in that cannot be recorded in the audit log fails.
    """
    if could_be_token(token):
        operator = await state.stores["live"].find_operator(digest_of(token))
        if operator is None:
            return False, None
        await state.admin("live", operator.name).signed_in("token")
        return True, operator
    if not state.sessions.redeem_link(token):
        return False, None
    try:
        await state.admin("live", LINK_ACTOR).signed_in("one-time link")
    except Unavailable:
        state.sessions.restore_link(token)
        raise
    return True, None


async def sign_out(request: Request) -> Response:
    state: ConsoleState = request.app.state.console
    state.sessions.end(request.cookies.get(state.origin.cookie_name, ""))
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(state.origin.cookie_name, path="/")
    return response


def _local_path(target: str) -> str:
    """The target if it is a path of this console, else the home page: a sign-in must not lead to another site."""
    is_local = target.startswith("/") and not target.startswith("//") and "\\" not in target and target.isprintable()
    return target if is_local else HOME
