"""Keys: list, create, rotate, revoke, limits; the usage of one key and its recent refusals."""

import contextlib
from typing import Any, NamedTuple, cast

from starlette.exceptions import HTTPException
from starlette.responses import Response

from petstore.admin.charts import key_bars, recent_refusals
from petstore.admin.durations import parse_duration
from petstore.console.forms import Form
from petstore.console.overview import series
from petstore.console.requests import ConsoleRequest
from petstore.errors import OperatorError, Unavailable
from petstore.keys import SCOPES, ApiKey, Scope
from petstore.plans import PLANS, Limits, Plan
from petstore.rate_limits import DAY, MINUTE, SECOND, Windows
from petstore.usage import SPANS

PAGE_SIZE = 50


class Quota(NamedTuple):
    """Requests used in the open windows, and the end of a ban in force or 0."""

    minute: int
    day: int
    banned_until: float


async def show_list(request: ConsoleRequest) -> Response:
    return request.page("keys/list.html", **await _search(request))


async def rows(request: ConsoleRequest) -> Response:
    """The next keys of the table."""
    return request.table_rows("keys/rows.html", "/keys", **await _search(request))


async def show_new(request: ConsoleRequest) -> Response:
    return request.page("keys/new.html", form=Form({"plan": "free"}), scopes=SCOPES, plans=PLANS, error="")


async def create(request: ConsoleRequest) -> Response:
    form = await request.form()
    scopes = [scope for scope in SCOPES if scope in form.texts("scope")]
    try:
        key, secret = await request.admin.create_key(
            _plan(form), name=form.text("name").strip(), scopes=_at_least_one(scopes), limits=_enterprise_limits(form),
            life=parse_duration(form.text("expires")) if form.text("expires").strip() else None,
        )  # fmt: skip
    except (OperatorError, Unavailable) as error:
        status, message = _error(error)
        return request.page("keys/new.html", status, form=form, scopes=scopes, plans=PLANS, error=message)
    request.session.new_secrets[key.id] = secret
    return request.redirect(f"/keys/{key.id}")


async def show(request: ConsoleRequest) -> Response:
    return await _page(request)


async def refresh(request: ConsoleRequest) -> Response:
    """The part that the page loads again every few seconds."""
    return request.part("keys/refresh.html", **await _content(request, await _find(request)), refreshed=True)


async def rotate(request: ConsoleRequest) -> Response:
    form = await request.form()
    key_id = (await _find(request)).id
    try:
        _, secret = await request.admin.rotate_key(key_id, parse_duration(form.text("overlap")))
    except (OperatorError, Unavailable) as error:
        return await _page(request, form, error)
    request.session.new_secrets[key_id] = secret
    return request.redirect(f"/keys/{key_id}")


async def set_limits(request: ConsoleRequest) -> Response:
    form = await request.form()
    key_id = (await _find(request)).id
    try:
        changed = await request.admin.set_limits(key_id, _limits(form))
    except (OperatorError, Unavailable) as error:
        return await _page(request, form, error)
    request.flash(f"The limits are now {changed.per_minute:,} per minute and {changed.per_day:,} per day.")
    return request.redirect(f"/keys/{key_id}")


async def confirm_revoke(request: ConsoleRequest) -> Response:
    return request.page("keys/revoke.html", key=await _find(request))


async def revoke(request: ConsoleRequest) -> Response:
    key_id = (await _find(request)).id
    try:
        await request.admin.revoke_key(key_id)
    except (OperatorError, Unavailable) as error:
        request.flash(_error(error)[1], ok=False)
    else:
        request.flash("The key is revoked. The service refuses it from the next request on.")
    return request.redirect(f"/keys/{key_id}")


async def _page(request: ConsoleRequest, form: Form | None = None, error: Exception | None = None) -> Response:
    key = await _find(request)
    status, message = _error(error) if error else (200, "")
    secrets = request.session.new_secrets if request.http.method != "HEAD" else {}  # HEAD shows nothing to the operator
    return request.page(
        "keys/show.html", status, **await _content(request, key), form=form or Form(), error=message,
        secret=secrets.pop(key.id, None),
    )  # fmt: skip


async def _find(request: ConsoleRequest) -> ApiKey:
    """Raises HTTPException."""
    key = await request.find_key(request.http.path_params["key_id"])
    if key is None:
        raise HTTPException(404)
    return key


async def _content(request: ConsoleRequest, key: ApiKey) -> dict[str, Any]:
    bars = (await key_bars(request.store, [key.id], SPANS[request.span], request.now))[key.id]
    (quota,) = await _quotas(request, [key])
    return {
        "key": key,
        "span": request.span,
        "bars": bars,
        "series": series(bars),
        "quota": quota,
        "refusals": await recent_refusals(request.store, key.id, request.now),
    }


async def _search(request: ConsoleRequest) -> dict[str, Any]:
    text, before = request.parameter("q").strip(), None
    if last := await request.find_key(request.parameter("before")):
        before = (last.created, last.id)
    found = await request.store.newest_keys(before=before, limit=PAGE_SIZE + 1, text=text)
    keys = found[:PAGE_SIZE]
    quotas = await _quotas(request, keys)
    return {
        "q": text,
        "rows": list(zip(keys, quotas, strict=True)),
        "more": len(found) > PAGE_SIZE,
        "first": before is None,
    }


async def _quotas(request: ConsoleRequest, keys: list[ApiKey]) -> list[Quota | None]:
    """None while the gate does not respond: the page shows the rest."""
    with contextlib.suppress(Unavailable):
        if await request.state.gate_responds():
            windows = await request.gate.windows([key.id for key in keys])
            return [_quota(each, int(request.now * SECOND)) for each in windows]
    return [None] * len(keys)


def _quota(windows: Windows, at: int) -> Quota:
    minute = windows.minute_used if abs(at - windows.minute_start) < MINUTE else 0
    day = windows.day_used if abs(at - windows.day_start) < DAY else 0
    return Quota(minute, day, windows.ban_end / SECOND if windows.ban_end > at else 0)


def _error(error: Exception) -> tuple[int, str]:
    if isinstance(error, Unavailable):
        return 503, "The store did not respond. Check whether the change was made, then try again."
    return 422, str(error)


def _plan(form: Form) -> Plan:
    if form.text("plan") not in PLANS:
        raise OperatorError("Choose a plan.")
    return cast(Plan, form.text("plan"))


def _at_least_one(scopes: list[Scope]) -> list[Scope]:
    if not scopes:
        raise OperatorError("Choose at least one scope: a key without a scope can do nothing.")
    return scopes


def _enterprise_limits(form: Form) -> Limits | None:
    return _limits(form) if form.text("plan") == "enterprise" else None


def _limits(form: Form) -> Limits:
    texts = [form.text(name).strip().replace(",", "") for name in ("per_minute", "per_day")]
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        raise OperatorError("Limits are whole numbers, per minute and per day.")
    return Limits(int(texts[0]), int(texts[1]))
