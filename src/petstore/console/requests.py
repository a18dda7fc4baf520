"""What a page needs: one environment's store, the gate, the operator's admin, and the way to answer."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from petstore.admin.actions import Admin
from petstore.console.background import BackgroundValue
from petstore.console.guard import Addresses
from petstore.console.jobs import Jobs
from petstore.console.rendering import Renderer
from petstore.console.sessions import Note, Session, Sessions, Tries
from petstore.errors import Unavailable
from petstore.gate import Ban, Gate, bans_in_force
from petstore.keys import ENVIRONMENTS, ApiKey, Environment
from petstore.pets import PetStatus, is_status
from petstore.store import Store
from petstore.usage import SPANS, KeyTotal, SpanName

BUSIEST = 8
FIELDS_MAX = 2_000  # of a form: more than an operator may tick at once


class Shared:
    """All that outlives a request."""

    def __init__(
        self,
        stores: dict[Environment, Store],
        gate: Gate,
        clock: Callable[[], float],
        addresses: Addresses,
        sessions: Sessions,
        jobs: Jobs,
    ) -> None:
        self.stores = stores
        self.gate = gate
        self.clock = clock
        self.addresses = addresses
        self.sessions = sessions
        self.jobs = jobs
        self.pages = Renderer()
        self.tries = Tries(clock)
        self.bans = {each: BackgroundValue(partial(self._bans, store)) for each, store in stores.items()}
        self.animals = {each: BackgroundValue(store.count) for each, store in stores.items()}
        self.busiest: dict[tuple[Environment, SpanName], BackgroundValue[list[KeyTotal]]] = {
            (each, span): BackgroundValue(partial(self._busiest, store, span))
            for each, store in stores.items()
            for span in SPANS
        }

    async def gate_answers(self) -> bool:
        """A step like any other, by which the gate notices whether it has to be stood in for. Raises Unavailable."""
        await self.gate.keys_version("live")
        return not self.gate.degraded()

    async def _bans(self, store: Store) -> list[tuple[Ban, ApiKey]]:
        """Those of one environment's keys, the longest first."""
        if not await self.gate_answers():
            raise Unavailable("the gate does not answer")
        bans = await bans_in_force(self.gate, self.clock())
        keys = await store.keys_by_id([ban.key_id for ban in bans])
        ours = [(ban, keys[ban.key_id]) for ban in bans if ban.key_id in keys]
        return sorted(ours, key=lambda each: each[0].until, reverse=True)

    async def _busiest(self, store: Store, span: SpanName) -> list[KeyTotal]:
        chosen = SPANS[span]
        return await store.busiest(interval=chosen.interval, since=chosen.since(self.clock()), limit=BUSIEST)

    def admin(self, environment: Environment, actor: str) -> Admin:
        return Admin(self.stores[environment], self.gate, actor, self.clock)


class ConsoleRequest:
    """One request of somebody who is signed in, about one environment. Raises HTTPException for a third one."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.shared: Shared = request.app.state.shared
        self.session: Session = request.scope["session"]
        environment = request.path_params["environment"]
        if environment not in ENVIRONMENTS:
            raise HTTPException(404)
        self.environment: Environment = environment
        self.store: Store = self.shared.stores[self.environment]
        self.gate = self.shared.gate
        self.admin = self.shared.admin(self.environment, self.session.actor)
        self.now = self.shared.clock()

    @property
    def span(self) -> SpanName:
        return next((name for name in SPANS if name == self.asked("span")), "day")

    @property
    def status(self) -> PetStatus | None:
        return asked if is_status(asked := self.asked("status")) else None

    def asked(self, name: str) -> str:
        return self.request.query_params.get(name, "")

    def number_asked(self, name: str, otherwise: int) -> int:
        """A whole number that fits every store; whatever else was asked is as if nothing was."""
        text = self.asked(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise

    @property
    def is_partial(self) -> bool:
        """Whether htmx asks for a part of a page."""
        return self.request.headers.get("hx-request") == "true"

    def page(self, template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
        """A whole page. What was to be told is told, once."""
        notes, self.session.notes = self.session.notes, []
        section = self.request.url.path.split("/")[2]
        return self.part(template, status, section=section, operator=self.session.actor, notes=notes, **context)

    def part(self, template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
        return self.shared.pages.html(
            template, status, environment=self.environment, base=f"/{self.environment}", now=self.now,
            degraded=self.gate.degraded(), **context,
        )  # fmt: skip

    def tell(self, text: str, *, good: bool = True, address: str = "") -> None:
        self.session.notes.append(Note(text, good, address))

    def go(self, path: str) -> Response:
        """To a page of this environment, after something was done."""
        return RedirectResponse(f"/{self.environment}{path}", 303)

    async def form(self) -> "Form":
        return Form(await self.request.form(max_fields=FIELDS_MAX))

    async def key(self, key_id: str) -> ApiKey | None:
        """Raises Unavailable. What cannot be an id is not looked for: a store may take offence at it."""
        return await self.store.key(key_id) if key_id.isascii() and key_id.isprintable() else None


class Form:
    """What was typed: kept, whatever comes of it."""

    def __init__(self, data: FormData | Mapping[str, str] | None = None) -> None:
        self._data = data if isinstance(data, FormData) else FormData(data or {})

    def text(self, name: str, otherwise: str = "") -> str:
        value = self._data.get(name, otherwise)
        return value if isinstance(value, str) else otherwise

    def texts(self, name: str) -> list[str]:
        return [value for value in self._data.getlist(name) if isinstance(value, str)]

    def file(self, name: str) -> UploadFile | None:
        value = self._data.get(name)
        return value if isinstance(value, UploadFile) else None
