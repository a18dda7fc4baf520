"""Signing in and out: by the one-time link, or with an operator's token."""

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from petstore.console.requests import Form, Shared
from petstore.console.sessions import GUEST, SESSION_SECONDS, Session, could_be_link_token
from petstore.errors import Unavailable
from petstore.keys import digest_of
from petstore.observability.logs import event
from petstore.operators import Operator, could_be_token

HOME = "/live/overview"
FORM_MAX = 64 * 1024


async def session_of(shared: Shared, cookie: str) -> Session | None:
    """Raises Unavailable. An operator who was revoked is signed out by it."""
    session = shared.sessions.find(cookie)
    if session is not None and session.name is not None:
        operator = await shared.stores["live"].operator(session.name)
        # One of the same name who was named anew is another.
        if operator is None or operator.revoked is not None or operator.created != session.named:
            shared.sessions.end(cookie)
            return None
    return session


def sign_in_page(shared: Shared, request: Request, fault: str = "", status: int = 401, wait: int = 0) -> Response:
    headers = {"hx-refresh": "true"}  # a part of a page cannot be the sign-in page: reload the whole
    if wait:
        headers["retry-after"] = str(wait)
    asks_for_page = request.method == "GET" and request.url.path != "/sign-in"
    if asks_for_page and request.headers.get("sec-fetch-site") == "cross-site":
        # A strict cookie does not come along with a link from another site, but with our own reload it does.
        headers["refresh"] = "0"
    next_path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    wanted = next_path if asks_for_page else HOME
    return shared.pages.html("sign_in.html", status, headers, fault=fault, next=wanted)


async def sign_in(request: Request) -> Response:
    """GET with the link's token, or POST with that or an operator's."""
    shared: Shared = request.app.state.shared
    form = await _form(request) if request.method == "POST" else Form(request.query_params)
    token = "" if request.method == "HEAD" else form.text("token").strip()  # a look at the link does not use it up
    address = request.client.host if request.client else ""
    if not token:
        fault = "Paste the token first." if request.method == "POST" else ""
        return sign_in_page(shared, request, fault, 401)
    if request.method == "GET" and not (_is_own_doing(request) and could_be_link_token(token)):
        fault = "This address does not sign you in. Paste the printed link into the address bar, or your token here."
        return sign_in_page(shared, request, fault, 401)
    if wait := shared.tries.wait(address):
        return sign_in_page(shared, request, f"Too many wrong tokens: try again in {wait} seconds.", 429, wait)
    try:
        good, operator = await _who(shared, token)
    except Unavailable as error:
        event(logging.ERROR, "unavailable", cause=str(error))
        return sign_in_page(shared, request, "The store does not answer. Try again in a moment.", 503)
    if not good:
        shared.tries.failed(address)
        event(logging.WARNING, "sign-in refused", address=address)
        return sign_in_page(shared, request, "This token is not valid, or it was used before.", 401)
    cookie = shared.sessions.begin(operator)
    response = RedirectResponse(_own_path(form.text("next")), 303)
    response.set_cookie(
        shared.addresses.cookie, cookie, SESSION_SECONDS, path="/",
        httponly=True, samesite="strict", secure=shared.addresses.secure,
    )  # fmt: skip
    return response


async def _form(request: Request) -> Form:
    """Raises HTTPException for more than a token and an address need: nobody has signed in yet."""
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > FORM_MAX:
        raise HTTPException(400)
    return Form(await request.form(max_files=0))


def _is_own_doing(request: Request) -> bool:
    """Whether somebody opened this address, and not a page of another site, which could use up all the tries."""
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")


async def _who(shared: Shared, token: str) -> tuple[bool, Operator | None]:
    """Whether the token is good, and its operator; whoever has the link has none. Raises Unavailable.

    A sign-in that could not be recorded is none.
    """
    if could_be_token(token):
        operator = await shared.stores["live"].find_operator(digest_of(token))
        if operator is None:
            return False, None
        await shared.admin("live", operator.name).signed_in("token")
        return True, operator
    if not shared.sessions.redeem(token):
        return False, None
    try:
        await shared.admin("live", GUEST).signed_in("one-time link")
    except Unavailable:
        shared.sessions.give_back(token)
        raise
    return True, None


async def sign_out(request: Request) -> Response:
    shared: Shared = request.app.state.shared
    shared.sessions.end(request.cookies.get(shared.addresses.cookie, ""))
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(shared.addresses.cookie, path="/")
    return response


def _own_path(wanted: str) -> str:
    """A path of this console and nowhere else."""
    fits = wanted.startswith("/") and not wanted.startswith("//") and "\\" not in wanted and wanted.isprintable()
    return wanted if fits else HOME
