"""Checks the host name, origin, session and role of every request. Adds security headers to every response."""

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from petstore.console.error_pages import http_error, unavailable
from petstore.console.requests import cookie_of
from petstore.console.sign_in import find_session, sign_in_page
from petstore.console.state import ConsoleState
from petstore.errors import Unavailable

QUERY_MAX, PARAMETERS_MAX = 4 * 1024, 100  # limits on a query string: its size in bytes and its number of parameters
ALLOWED_FOR_VIEWERS = ("/sign-in", "/sign-out", "/sign-out/everywhere")  # the only paths that viewers can POST to
# Allows only the console's own files. Forbids inline scripts and styles, frames, and forms that post to other sites.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
HSTS = {"strict-transport-security": "max-age=31536000"}


class SecurityMiddleware:
    """ASGI middleware for all requests to the console."""

    def __init__(self, app: ASGIApp, state: ConsoleState) -> None:
        self._app = app
        self._state = state
        self._headers = {**HEADERS, **(HSTS if state.origin.secure else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        scope["console"] = self._state
        refusal = await self._refusal(Request(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("cache-control", "no-store")
                if refusal is not None and scope["method"] == "POST":
                    headers["connection"] = "close"  # the body is not read, so the connection cannot be reused
            await send(message)

        try:
            await (refusal or self._app)(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass  # the client is gone
        except Exception:
            # `internal_error` has already logged the exception and sent an error page, but Starlette re-raises it.
            if refusal is not None:
                raise

    async def _refusal(self, request: Request) -> Response | None:
        query: bytes = request.scope["query_string"]
        if len(query) > QUERY_MAX or query.count(b"&") >= PARAMETERS_MAX:
            return PlainTextResponse("The query is too long.\n", 400)
        path, is_post, origin = request.url.path, request.method == "POST", self._state.origin
        if request.headers.get("host", "").lower() not in origin.allowed_hosts:
            return PlainTextResponse("The console does not accept this host name. See --public-url.\n", 421)
        # Browsers send Origin with every POST. A page on another site cannot forge the console's origin.
        if is_post and request.headers.get("origin", "").lower() not in origin.allowed_origins:
            return PlainTextResponse("This request did not come from a console page.\n", 403)
        request.scope["session"] = None
        if path.startswith("/static/"):  # static files contain no private data, and error pages need the styles
            return None
        try:
            cookie = cookie_of(request, origin.cookie_name)
            session = await find_session(self._state, cookie, automatic=path.endswith("/refresh"))
        except Unavailable as error:
            return unavailable(request, error)
        if session is None and path != "/sign-in":
            return sign_in_page(request)
        request.scope["session"] = session
        if session is not None and session.role == "viewer" and is_post and path not in ALLOWED_FOR_VIEWERS:
            return http_error(request, HTTPException(403))
        return None
