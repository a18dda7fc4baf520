"""A request of a signed-in operator: its parameters, and how to respond to it."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from petstore.audit import KEY_ACTIONS, PET_ACTIONS, FoundEntries
from petstore.console.forms import Form, read_form
from petstore.console.outages import failed_change
from petstore.console.sessions import FlashMessage, Session
from petstore.console.state import ConsoleState
from petstore.edits import Conflict
from petstore.errors import OperatorError, Unavailable
from petstore.keys import ENVIRONMENTS, ApiKey, Environment
from petstore.store import Store
from petstore.usage import SPANS, SpanName

HISTORY_SIZE = 50


class ConsoleRequest:
    """One request about one environment. Raises HTTPException when the environment does not exist."""

    def __init__(self, request: Request) -> None:
        self.http = request
        self.state: ConsoleState = request.scope["console"]
        self.session: Session = request.scope["session"]
        environment = request.path_params["environment"]
        if environment not in ENVIRONMENTS:
            raise HTTPException(404)
        self.environment: Environment = environment
        self.store: Store = self.state.stores[self.environment]
        self.admin = self.state.admin(self.environment, self.session.actor)
        self.live_admin = self.state.admin("live", self.session.actor)  # for operators, which only live has
        self.now = self.state.clock()

    @property
    def span(self) -> SpanName:
        return next((name for name in SPANS if name == self.parameter("span")), "day")

    @property
    def query(self) -> str:
        """The query string with its question mark, or nothing."""
        return f"?{self.http.url.query}" if self.http.url.query else ""

    def parameter(self, name: str) -> str:
        return self.http.query_params.get(name, "")

    def number(self, name: str) -> int:
        """A parameter that is a whole number and fits every store; 0 for any other value."""
        text = self.parameter(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0

    @property
    def is_htmx(self) -> bool:
        """Whether htmx asks for a part of a page."""
        return self.http.headers.get("hx-request") == "true"

    def page(self, template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
        """A whole page, with the flash messages."""
        self.state.unavailable_since = None
        messages, self.session.messages = self.session.messages, []
        name = self.http.url.path.split("/")[2]
        section = "animals" if name == "jobs" else name
        return self.part(template, status, section=section, messages=messages, **context)

    def part(self, template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
        shared = common_context(self.state, self.session, self.environment)
        return self.state.renderer.html(template, status, **shared, **context)

    def loaded_part(self, template: str, path: str, *, first: bool = False, **context: Any) -> HTMLResponse:
        """The part of a page that htmx loads. `first`: the rows of a new search, whose address can be shared."""
        response = self.part(template, first=first, refreshed=True, **context)
        if first:
            response.headers["hx-replace-url"] = f"/{self.environment}{path}{self.query}"
        return response

    def flash(self, text: str, *, ok: bool = True, link: str = "") -> None:
        """Show a message on the next page."""
        self.session.messages.append(FlashMessage(text, ok, link))

    def pets_changed(self) -> None:
        """The operator changed animals: count them again."""
        self.state.pet_counts[self.environment].invalidate()

    async def act(self, action: Awaitable[object], done: str, path: str) -> Response:
        """Await an action, and show on the page at `path` that it is done, or why it was not possible."""
        try:
            await action
            self.flash(done)
        except OperatorError as error:
            self.flash(str(error), ok=False)
        return self.redirect(path)

    def redirect(self, path: str) -> Response:
        """To a page of this environment, after a POST."""
        return RedirectResponse(f"/{self.environment}{path}", 303)

    async def form(self) -> Form:
        """Raises HTTPException."""
        return await read_form(self.http)

    async def key(self) -> ApiKey:
        """The key of the path. Raises HTTPException and Unavailable."""
        key = await self.find_key(self.http.path_params["key_id"])
        if key is None:
            raise HTTPException(404)
        return key

    async def find_key(self, key_id: str) -> ApiKey | None:
        """Raises Unavailable. A text with other characters than an id has is not looked up: PostgreSQL rejects some."""
        return await self.store.keys.get(key_id) if key_id.isascii() and key_id.isprintable() else None


class Subject(NamedTuple):
    """An animal or a key whose history in the audit log a page shows."""

    kind: Literal["animal", "key"]
    id: str
    path: str

    async def history(self, request: ConsoleRequest) -> FoundEntries:
        """The entries below the number that the query names, the newest first. Raises Unavailable."""
        before = request.number("before") or None
        found = await request.store.audit.find(before=before, limit=HISTORY_SIZE, subject=self.id)
        actions = PET_ACTIONS if self.kind == "animal" else KEY_ACTIONS
        # An operator's name may look like an id.
        return found._replace(entries=[each for each in found.entries if each[1].action in actions])


def cookie_of(request: Request, name: str) -> str:
    """The value of one cookie, or nothing. Starlette would decode all that a client sends."""
    _, found, rest = f"; {request.headers.get('cookie', '')}".partition(f"; {name}=")
    return rest.partition(";")[0].strip() if found else ""


Handler = Callable[[ConsoleRequest], Awaitable[Response]]


def describe(error: Exception | None) -> tuple[int, str]:
    """The status and the message of a page whose form was sent, and failed by this error."""
    if error is None:
        return 200, ""
    if isinstance(error, Unavailable):
        return 503, failed_change(error)
    return 409 if isinstance(error, Conflict) else 422, str(error)


def common_context(state: ConsoleState, session: Session, environment: Environment) -> dict[str, Any]:
    """What every template of a signed-in operator uses."""
    return {
        "environment": environment,
        "base": f"/{environment}",
        "now": state.clock(),
        "degraded": state.gate.degraded(),
        "troubles": state.node.troubles(),
        "actor": session.actor,
        "can_change": session.role == "operator",
    }
