"""Keys: list with filters, create."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from starlette.responses import Response

from petstore.admin.charts import key_bars
from petstore.admin.durations import parse_duration
from petstore.admin.key_status import KEY_STATES, KeyState, KeyStatus, statuses
from petstore.console.forms import Form
from petstore.console.requests import ConsoleRequest
from petstore.console.sessions import UNCERTAIN
from petstore.errors import OperatorError, Unavailable
from petstore.keys import KEY_SORTS, SCOPES, ApiKey, KeyQuery, KeySort, Scope
from petstore.plans import PLANS, Limits, Plan
from petstore.usage import SPANS

PAGE_SIZE = 50
BANS_TIMEOUT = 2.0  # seconds: without the bans, a filter by state would find the wrong keys


class KeyRow(NamedTuple):
    """A row of the table. `hours` are the requests in each hour of the last day."""

    key: ApiKey
    status: KeyStatus | None  # None while the gate does not respond
    hours: list[int]


async def show_list(request: ConsoleRequest) -> Response:
    return request.page("keys/list.html", **await _search(request), plans=PLANS, states=KEY_STATES, sorts=KEY_SORTS)


async def rows(request: ConsoleRequest) -> Response:
    """The next keys of the table."""
    return request.table_rows("keys/rows.html", "/keys", **await _search(request))


async def show_new(request: ConsoleRequest) -> Response:
    form = Form([("plan", "free"), *(("scope", scope) for scope in SCOPES)])
    return request.page("keys/new.html", form=form, plans=PLANS, error="")


async def create(request: ConsoleRequest) -> Response:
    form = await request.form()
    try:
        key, secret = await request.admin.create_key(
            plan_of(form), name=form.text("name").strip(), scopes=scopes_of(form), limits=enterprise_limits(form),
            life=parse_duration(form.text("expires"), least=1) if form.text("expires").strip() else None,
        )  # fmt: skip
    except (OperatorError, Unavailable) as error:
        status, message = describe(error)
        return request.page("keys/new.html", status, form=form, plans=PLANS, error=message)
    request.session.new_secrets[key.id] = secret
    return request.redirect(f"/keys/{key.id}")


async def _search(request: ConsoleRequest) -> dict[str, Any]:
    text = request.parameter("q").strip()
    plan = cast(Plan, request.parameter("plan")) if request.parameter("plan") in PLANS else None
    state = cast(KeyState, request.parameter("state")) if request.parameter("state") in KEY_STATES else None
    sort = cast(KeySort, request.parameter("sort")) if request.parameter("sort") in KEY_SORTS else KEY_SORTS[0]
    after = await request.find_key(request.parameter("after"))
    query = KeyQuery(text, plan, "active" if state == "banned" else state)
    if state in ("active", "banned"):  # the gate has the bans, not the store
        banned = await _banned_ids(request)
        query = query._replace(ids=banned) if state == "banned" else query._replace(except_ids=banned)
    found = await request.store.find_keys(query, now=request.now, sort=sort, after=after, limit=PAGE_SIZE + 1)
    keys = found[:PAGE_SIZE]
    found_statuses = await statuses_of(request, keys)
    bars = await key_bars(request.store, [key.id for key in keys], SPANS["day"], request.now)
    return {
        "q": text,
        "plan": plan or "",
        "state": state or "",
        "sort": sort,
        "rows": [KeyRow(key, status, bars[key.id].totals()) for key, status in zip(keys, found_statuses, strict=True)],
        "more": len(found) > PAGE_SIZE,
        "first": after is None,
    }


async def _banned_ids(request: ConsoleRequest) -> list[str]:
    bans = await request.state.bans[request.environment].latest(first_timeout=BANS_TIMEOUT)
    return [ban.key_id for ban, _ in bans.value] if bans else []


async def statuses_of(request: ConsoleRequest, keys: Sequence[ApiKey]) -> list[KeyStatus | None]:
    """None while the gate does not respond: the page shows the rest."""
    with contextlib.suppress(Unavailable):
        if await request.state.gate_responds():
            return [*await statuses(request.gate, keys, request.now)]
    return [None] * len(keys)


def describe(error: Exception) -> tuple[int, str]:
    """The status and the message of a failed change."""
    if isinstance(error, Unavailable):
        return 503, UNCERTAIN
    return 422, str(error)


def plan_of(form: Form) -> Plan:
    """Raises OperatorError."""
    if form.text("plan") not in PLANS:
        raise OperatorError("Choose a plan.")
    return cast(Plan, form.text("plan"))


def scopes_of(form: Form) -> list[Scope]:
    """Raises OperatorError."""
    scopes = [scope for scope in SCOPES if scope in form.texts("scope")]
    if not scopes:
        raise OperatorError("Choose at least one scope: a key without a scope can do nothing.")
    return scopes


def enterprise_limits(form: Form) -> Limits | None:
    """The limits of the form, for an enterprise key. Raises OperatorError."""
    if form.text("plan") != "enterprise":
        return None
    texts = [form.text(name).strip().replace(",", "") for name in ("per_minute", "per_day")]
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        raise OperatorError("Limits are whole numbers, per minute and per day.")
    return Limits(int(texts[0]), int(texts[1]))
