"""Requests from signed-in operators, and the responses to them."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from petstore.audit import KEY_ACTIONS, PET_ACTIONS, Actor, FoundEntries
from petstore.console.forms import Form, read_form
from petstore.console.outages import failed_change
from petstore.console.sessions import FlashMessage, Session
from petstore.console.state import ConsoleState
from petstore.edits import Conflict
from petstore.errors import OperatorError, Unavailable
from petstore.keys import ENVIRONMENTS, ApiKey, Environment
from petstore.pets import parse_whole_number
from petstore.store import Store
from petstore.usage import SPANS, SpanName
from petstore.wording import could_be_id

HISTORY_SIZE = 50


class ConsoleRequest:
    """A signed-in operator's request to one environment. Raises HTTPException if the environment does not exist."""

    def __init__(self, request: Request) -> None:
        self.http = request
        self.state: ConsoleState = request.scope["console"]
        self.session: Session = request.scope["session"]
        environment = request.path_params["environment"]
        if environment not in ENVIRONMENTS:
            raise HTTPException(404)
        self.environment: Environment = environment
        self.store: Store = self.state.stores[self.environment]
        self.operators = self.state.stores["live"].operators  # the same operators act in both environments
        self.now = self.state.clock()

    @property
    def by(self) -> Actor:
        """The signed-in operator, who acts now. A job may act long after the request."""
        return Actor(self.session.actor, self.state.clock())

    @property
    def span(self) -> SpanName:
        return next((name for name in SPANS if name == self.parameter("span")), "day")

    @property
    def query(self) -> str:
        """The query string including the question mark, or an empty string if there is none."""
        return f"?{self.http.url.query}" if self.http.url.query else ""

    def parameter(self, name: str) -> str:
        return self.http.query_params.get(name, "")

    def number(self, name: str) -> int:
        """Returns a parameter as an integer, or 0 if it is not a whole number or is too large for the store."""
        return parse_whole_number(self.parameter(name)) or 0

    @property
    def is_htmx(self) -> bool:
        """Whether htmx or console.js sent the request."""
        return self.http.headers.get("hx-request") == "true"

    def page(self, template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
        """Returns a full page, including the flash messages."""
        self.state.unavailable_since = None
        messages, self.session.messages = self.session.messages, []
        name = self.http.url.path.split("/")[2]
        section = "animals" if name == "jobs" else name
        return self.part(template, status, section=section, messages=messages, **context)

    def part(self, template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
        shared = common_context(self.state, self.session, self.environment)
        return self.state.renderer.html(template, status, **shared, **context)

    def loaded_part(self, template: str, path: str, *, first: bool = False, **context: Any) -> HTMLResponse:
        """Returns the part of a page that htmx loads.

        If `first` is true, the part contains the first rows of a new search, and the address bar changes to its URL.
        """
        response = self.part(template, first=first, refreshed=True, **context)
        if first:
            response.headers["hx-replace-url"] = f"/{self.environment}{path}{self.query}"
        return response

    def flash(self, text: str, *, ok: bool = True, link: str = "") -> None:
        """Shows a message on the next page."""
        self.session.messages.append(FlashMessage(text, ok, link))

    def pets_changed(self) -> None:
        """Makes the next page recount the animals. Call this after an operator changes animals."""
        self.state.pet_counts[self.environment].invalidate()

    async def act(self, action: Awaitable[object], done: str, path: str) -> Response:
        """Performs an action and redirects to `path`. The next page shows the message `done` or an error message."""
        try:
            await action
            self.flash(done)
        except OperatorError as error:
            self.flash(str(error), ok=False)
        return self.redirect(path)

    def redirect(self, path: str) -> Response:
        """Redirects to a page in this environment after a POST."""
        return RedirectResponse(f"/{self.environment}{path}", 303)

    async def form(self) -> Form:
        """Reads the form in the request body. Raises HTTPException if it is invalid, too large or too slow."""
        return await read_form(self.http)

    async def key(self) -> ApiKey:
        """Returns the key whose id is in the path. Raises Unavailable, or HTTPException if there is no such key."""
        key = await self.find_key(self.http.path_params["key_id"])
        if key is None:
            raise HTTPException(404)
        return key

    async def find_key(self, key_id: str) -> ApiKey | None:
        """Returns the key with this id, or None if it does not exist. Raises Unavailable."""
        return await self.store.keys.get(key_id) if could_be_id(key_id) else None


class Subject(NamedTuple):
    """An animal or a key, whose page shows its history from the audit log."""

    kind: Literal["animal", "key"]
    id: str
    path: str

    async def history(self, request: ConsoleRequest) -> FoundEntries:
        """Returns this subject's audit entries, newest first. Raises Unavailable.

        If the request has a `before` parameter, returns only entries with lower numbers.
        """
        before = request.number("before") or None
        found = await request.store.audit.find(before=before, limit=HISTORY_SIZE, subject=self.id)
        actions = PET_ACTIONS if self.kind == "animal" else KEY_ACTIONS
        # Exclude entries about operators, because an operator's name can look like an id.
        return found._replace(entries=[each for each in found.entries if each[1].action in actions])


def cookie_of(request: Request, name: str) -> str:
    """Returns a cookie's value, or an empty string if the request does not contain the cookie.

    Does not use Starlette's parser, which would decode every cookie.
    """
    _, found, rest = f"; {request.headers.get('cookie', '')}".partition(f"; {name}=")
    return rest.partition(";")[0].strip() if found else ""


Handler = Callable[[ConsoleRequest], Awaitable[Response]]


def describe(error: Exception | None) -> tuple[int, str]:
    """Returns the HTTP status and the message to use when showing a form again after this error."""
    if error is None:
        return 200, ""
    if isinstance(error, Unavailable):
        return 503, failed_change(error)
    return 409 if isinstance(error, Conflict) else 422, str(error)


def common_context(state: ConsoleState, session: Session, environment: Environment) -> dict[str, Any]:
    """Returns the template context shared by all pages for signed-in operators."""
    return {
        "environment": environment,
        "base": f"/{environment}",
        "now": state.clock(),
        "degraded": state.gate.degraded(),
        "troubles": state.node.troubles(),
        "actor": session.actor,
        "can_change": session.role == "operator",
    }
