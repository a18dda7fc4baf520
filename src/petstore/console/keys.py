"""Keys: list, create, rotate, revoke, limits; what one key uses and where it was refused."""

import contextlib
from typing import Any, NamedTuple, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from petstore.admin.charts import key_bars, recent_refusals
from petstore.admin.durations import parse_duration
from petstore.console.overview import series
from petstore.console.requests import ConsoleRequest, Form
from petstore.errors import OperatorError, Unavailable
from petstore.keys import SCOPES, ApiKey, Scope
from petstore.plans import PLANS, Limits, Plan
from petstore.rate_limits import DAY, MINUTE, SECOND, Windows
from petstore.usage import SPANS

PAGE = 50


class Quota(NamedTuple):
    """What is used of the open windows, and the end of a ban in force or 0."""

    minute: int
    day: int
    banned_until: float


async def keys(request: Request) -> Response:
    visit = ConsoleRequest(request)
    return visit.page("keys.html", **await _filtered(visit))


async def rows(request: Request) -> Response:
    """The next keys of the table."""
    visit = ConsoleRequest(request)
    found = await _filtered(visit)
    response = visit.part("keys_rows.html", **found)
    if found["first"]:  # a new search: the address should say so, for a reload or a friend
        response.headers["hx-replace-url"] = f"/{visit.environment}/keys?{request.url.query}"
    return response


async def new(request: Request) -> Response:
    return ConsoleRequest(request).page(
        "key_new.html", form=Form({"plan": "free"}), scopes=SCOPES, plans=PLANS, fault=""
    )


async def create(request: Request) -> Response:
    visit = ConsoleRequest(request)
    form = await visit.form()
    scopes = [scope for scope in SCOPES if scope in form.texts("scope")]
    try:
        key, secret = await visit.admin.create_key(
            _plan(form), name=form.text("name").strip(), scopes=_some(scopes), limits=_limits_if_own(form),
            life=parse_duration(form.text("expires")) if form.text("expires").strip() else None,
        )  # fmt: skip
    except (OperatorError, Unavailable) as error:
        status, fault = _fault(error)
        return visit.page("key_new.html", status, form=form, scopes=scopes, plans=PLANS, fault=fault)
    visit.session.secrets[key.id] = secret
    return visit.go(f"/keys/{key.id}")


async def key(request: Request) -> Response:
    return await _page(ConsoleRequest(request))


async def figures(request: Request) -> Response:
    """The part that the page asks for again and again."""
    visit = ConsoleRequest(request)
    return visit.part("key_figures.html", **await _figures(visit, await _key(visit)), refreshed=True)


async def rotate(request: Request) -> Response:
    visit = ConsoleRequest(request)
    form = await visit.form()
    key_id = (await _key(visit)).id
    try:
        _, secret = await visit.admin.rotate_key(key_id, parse_duration(form.text("overlap")))
    except (OperatorError, Unavailable) as error:
        return await _page(visit, form, error)
    visit.session.secrets[key_id] = secret
    return visit.go(f"/keys/{key_id}")


async def set_limits(request: Request) -> Response:
    visit = ConsoleRequest(request)
    form = await visit.form()
    key_id = (await _key(visit)).id
    try:
        changed = await visit.admin.set_limits(key_id, _limits(form))
    except (OperatorError, Unavailable) as error:
        return await _page(visit, form, error)
    visit.tell(f"The limits are now {changed.per_minute:,} a minute and {changed.per_day:,} a day.")
    return visit.go(f"/keys/{key_id}")


async def ask_revoke(request: Request) -> Response:
    visit = ConsoleRequest(request)
    return visit.page("key_revoke.html", key=await _key(visit))


async def revoke(request: Request) -> Response:
    visit = ConsoleRequest(request)
    key_id = (await _key(visit)).id
    try:
        await visit.admin.revoke_key(key_id)
    except (OperatorError, Unavailable) as error:
        visit.tell(_fault(error)[1], good=False)
    else:
        visit.tell("The key is revoked: from the next request on it is refused.")
    return visit.go(f"/keys/{key_id}")


async def _page(visit: ConsoleRequest, form: Form | None = None, error: Exception | None = None) -> Response:
    found = await _key(visit)
    status, fault = _fault(error) if error else (200, "")
    secrets = visit.session.secrets if visit.request.method != "HEAD" else {}  # a HEAD shows nobody anything
    return visit.page(
        "key.html", status, **await _figures(visit, found), form=form or Form(), fault=fault,
        secret=secrets.pop(found.id, None),
    )  # fmt: skip


async def _key(visit: ConsoleRequest) -> ApiKey:
    found = await visit.key(visit.request.path_params["key_id"])
    if found is None:
        raise HTTPException(404)
    return found


async def _figures(visit: ConsoleRequest, key: ApiKey) -> dict[str, Any]:
    bars = (await key_bars(visit.store, [key.id], SPANS[visit.span], visit.now))[key.id]
    (quota,) = await _quotas(visit, [key])
    return {
        "key": key,
        "span": visit.span,
        "bars": bars,
        "series": series(bars),
        "quota": quota,
        "refusals": await recent_refusals(visit.store, key.id, visit.now),
    }


async def _filtered(visit: ConsoleRequest) -> dict[str, object]:
    text, before = visit.asked("q").strip(), None
    if last := await visit.key(visit.asked("before")):
        before = (last.created, last.id)
    found = await visit.store.newest_keys(before=before, limit=PAGE + 1, text=text)
    shown = found[:PAGE]
    quotas = await _quotas(visit, shown)
    return {"q": text, "rows": list(zip(shown, quotas, strict=True)), "more": len(found) > PAGE, "first": not before}


async def _quotas(visit: ConsoleRequest, keys: list[ApiKey]) -> list[Quota | None]:
    """None while the gate does not answer: the rest of the page is still worth seeing."""
    with contextlib.suppress(Unavailable):
        if await visit.shared.gate_answers():
            windows = await visit.gate.windows([key.id for key in keys])
            return [_quota(each, int(visit.now * SECOND)) for each in windows]
    return [None] * len(keys)


def _quota(windows: Windows, at: int) -> Quota:
    minute = windows.minute_used if abs(at - windows.minute_start) < MINUTE else 0
    day = windows.day_used if abs(at - windows.day_start) < DAY else 0
    return Quota(minute, day, windows.ban_end / SECOND if windows.ban_end > at else 0)


def _fault(error: Exception) -> tuple[int, str]:
    if isinstance(error, Unavailable):
        return 503, "The store did not answer, so nothing may have changed. Look, then try again."
    return 422, str(error)


def _plan(form: Form) -> Plan:
    if form.text("plan") not in PLANS:
        raise OperatorError("Choose a plan.")
    return cast(Plan, form.text("plan"))


def _some(scopes: list[Scope]) -> list[Scope]:
    if not scopes:
        raise OperatorError("Choose at least one scope: a key without any could do nothing.")
    return scopes


def _limits_if_own(form: Form) -> Limits | None:
    return _limits(form) if form.text("plan") == "enterprise" else None


def _limits(form: Form) -> Limits:
    texts = [form.text(name).strip().replace(",", "") for name in ("per_minute", "per_day")]
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        raise OperatorError("Limits are whole numbers, per minute and per day.")
    return Limits(int(texts[0]), int(texts[1]))
