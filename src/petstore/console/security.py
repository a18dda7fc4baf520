"""Checks before every page: host name, origin, session and role. Adds the security headers to every response."""

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from petstore.console.sessions import Session
from petstore.errors import Unavailable
from petstore.settings import Settings

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_PORTS = {"http": 80, "https": 443}
ALLOWED_FOR_VIEWERS = ("/sign-in", "/sign-out", "/sign-out/everywhere")  # of all POSTs
# The browser loads the console's own files only: no inline script or style, no frame, no form to another site.
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


class ConsoleOrigin:
    """The address of this console in a browser, and every `Host` and `Origin` that the console accepts."""

    def __init__(self, settings: Settings) -> None:
        scheme = "https" if settings.tls_cert else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = settings.public_base or f"{scheme}://{host}:{settings.port}"
        self.secure = self.url.startswith("https://")
        # Browsers share cookies between ports, hence the port. They refuse a __Host- cookie that is not secure, or that
        # another host of the same domain sets.
        self.cookie_name = f"{'__Host-' if self.secure else ''}petstore_console_{settings.port}"
        local = [f"{scheme}://{name}:{settings.port}" for name in (*LOOPBACK, host)]
        self.allowed_origins = {_normalized(origin) for origin in (self.url, *local)}
        self.allowed_hosts = {urlsplit(origin).netloc for origin in self.allowed_origins}


FindSession = Callable[[str, bool], Awaitable[Session | None]]


class SecurityMiddleware:
    """The ASGI application around the pages."""

    def __init__(
        self,
        app: ASGIApp,
        origin: ConsoleOrigin,
        find_session: FindSession,
        sign_in_page: Callable[[Request], Response],
        error_page: Callable[[Request, int, str], Response],
        unavailable_page: Callable[[Request, Unavailable], Response],
    ) -> None:
        self._app = app
        self._origin = origin
        self._headers = {**HEADERS, **(HSTS if origin.secure else {})}
        self._find_session = find_session
        self._sign_in_page = sign_in_page
        self._error_page = error_page
        self._unavailable_page = unavailable_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        refusal = await self._refusal(Request(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("cache-control", "no-store")
                if refusal is not None and scope["method"] == "POST":
                    headers["connection"] = "close"  # the body of a refused request is not read
            await send(message)

        handler = refusal or self._app
        try:
            await handler(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass  # no client is left to respond to
        except Exception:
            # Starlette sends the error page and logs the exception. Then it raises the exception again for the server.
            if not isinstance(handler, Starlette):
                raise

    async def _refusal(self, request: Request) -> Response | None:
        path, is_post = request.url.path, request.method == "POST"
        if request.headers.get("host", "").lower() not in self._origin.allowed_hosts:
            return PlainTextResponse("The console does not have this host name. See --public-url.\n", 421)
        # A browser sends Origin with every POST. A page of another site cannot send the console's own.
        if is_post and request.headers.get("origin", "").lower() not in self._origin.allowed_origins:
            return PlainTextResponse("This request does not come from a page of the console.\n", 403)
        try:
            cookie = request.cookies.get(self._origin.cookie_name, "")
            session = await self._find_session(cookie, path.endswith("/refresh"))
        except Unavailable as error:
            return self._unavailable_page(request, error)
        if session is None and path != "/sign-in" and not path.startswith("/static/"):  # those two hold no data
            return self._sign_in_page(request)
        request.scope["session"] = session
        if session is not None and session.role == "viewer" and is_post and path not in ALLOWED_FOR_VIEWERS:
            return self._error_page(request, 403, "Your role is viewer: you can see every page and change nothing.")
        return None


def _normalized(origin: str) -> str:
    """As a browser writes an origin: lower case, no path, and no port where it is the default of the scheme."""
    parts = urlsplit(origin.lower())
    port = f":{parts.port}" if parts.port not in (None, DEFAULT_PORTS[parts.scheme]) else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"
