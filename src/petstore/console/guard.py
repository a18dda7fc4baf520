"""What every request passes before any page: the address asked for, where it comes from, and a session.

Every response leaves through here too, with the headers that keep a browser from doing what we did not mean.
"""

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
# Nothing but what comes from here; no inline script or style, no frame, no form to anywhere else.
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


class Addresses:
    """The addresses that this console is reached at: what `Host` may say, and what `Origin` must."""

    def __init__(self, settings: Settings) -> None:
        scheme = "https" if settings.tls_cert else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.origin = settings.public_base or f"{scheme}://{host}:{settings.port}"
        self.secure = self.origin.startswith("https://")
        self.cookie = f"petstore_console_{settings.port}"  # cookies do not tell ports apart
        own = [f"{scheme}://{name}:{settings.port}" for name in (*LOOPBACK, host)]
        self.origins = {_plain(origin) for origin in (self.origin, *own)}
        self.hosts = {urlsplit(origin).netloc for origin in self.origins}


class Guard:
    """The application around the pages."""

    def __init__(
        self,
        app: ASGIApp,
        addresses: Addresses,
        session_of: Callable[[str], Awaitable[Session | None]],
        sign_in_page: Callable[[Request], Response],
        outage_page: Callable[[Request, Unavailable], Response],
    ) -> None:
        self._app = app
        self._addresses = addresses
        self._session_of = session_of
        self._sign_in_page = sign_in_page
        self._outage_page = outage_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = await self._refusal(Request(scope)) or self._app
        try:
            await answer(scope, receive, guarded)
        except ClientDisconnect:
            pass  # nobody is left to be answered
        except Exception:
            # The pages have answered and logged it; it is raised again only for servers that want to know.
            if not isinstance(answer, Starlette):
                raise

    async def _refusal(self, request: Request) -> Response | None:
        if request.headers.get("host", "").lower() not in self._addresses.hosts:
            return PlainTextResponse("The console is not reached under this name: see --public-url.\n", 421)
        # A browser sends Origin with every POST; a request of another site's page cannot say ours.
        if request.method == "POST" and request.headers.get("origin", "").lower() not in self._addresses.origins:
            return PlainTextResponse("This request does not come from the console's own pages.\n", 403)
        try:
            session = await self._session_of(request.cookies.get(self._addresses.cookie, ""))
        except Unavailable as error:
            return self._outage_page(request, error)
        path = request.url.path
        if session is None and path != "/sign-in" and not path.startswith("/static/"):  # where no data is
            return self._sign_in_page(request)
        request.scope["session"] = session
        return None


def _plain(origin: str) -> str:
    """As a browser writes it: lower case, no path, and no port where it is the usual one."""
    parts = urlsplit(origin.lower())
    port = f":{parts.port}" if parts.port not in (None, DEFAULT_PORTS[parts.scheme]) else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"
