"""The pages for listing, creating, identifying, viewing and changing keys, and for listing bans."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from starlette.responses import Response

from petstore.audit import Actor
from petstore.console.edits import base_of, changes_in, edit_context, with_colleague
from petstore.console.forms import Form
from petstore.console.requests import ConsoleRequest, Handler, Subject, describe
from petstore.edits import Conflict
from petstore.errors import OperatorError, Unavailable
from petstore.keys import (
    ENVIRONMENTS,
    KEY_SORTS,
    KEY_UNITS,
    SCOPES,
    ApiKey,
    KeyChanges,
    KeyQuery,
    KeySort,
    Scope,
    mint,
    new_key,
    newest_number,
    old_secret_until,
    parse_duration,
    secret_in,
    well_formed,
)
from petstore.maintenance.bans import lift_ban
from petstore.operators import could_be_token
from petstore.pets import parse_whole_number
from petstore.plans import PLANS, Limits, Plan
from petstore.reports.charts import key_bars
from petstore.reports.key_status import GATE_STATES, KEY_STATES, KeyState, KeyStatus, in_state, statuses
from petstore.store.keys import Keys
from petstore.usage import SPANS
from petstore.wording import duration_in_words

PAGE_SIZE = 50
OVERLAP = "0s"
EXPIRING = ("7d", "30d", "90d")  # filter options
BANS_SHOWN = 100
BANS_TIMEOUT = 2.0  # seconds to wait for the list of bans, which is needed to filter by state


async def show_new(request: ConsoleRequest) -> Response:
    form = Form([("plan", "free"), *(("scope", scope) for scope in SCOPES)])
    return request.page("keys/new.html", form=form, plans=PLANS, error="")


async def create(request: ConsoleRequest) -> Response:
    form, by, secret = await request.form(), request.by, mint(request.environment)
    try:
        key = new_key(
            request.environment, plan_of(form), now=by.at, name=form.text("name").strip(),
            contact=form.text("contact").strip(), scopes=scopes_of(form), limits=enterprise_limits(form),
            expires=by.at + parse_duration(form.text("expires"), least=1) if form.text("expires").strip() else None,
        )  # fmt: skip
        await request.store.keys.create(key, secret, by)
    except (OperatorError, Unavailable) as error:
        status, message = describe(error)
        return request.page("keys/new.html", status, form=form, plans=PLANS, error=message)
    request.session.new_secrets[key.id] = secret
    return request.redirect(f"/keys/{key.id}")


async def identify_page(request: ConsoleRequest, status: int = 200, error: str = "") -> Response:
    return request.page("keys/identify.html", status, error=error, key=None)


async def identify(request: ConsoleRequest) -> Response:
    """Shows the key that a secret belongs to.

    The browser sends the secret in the body of a POST, never in a URL, and no page shows it again. The secret's prefix
    determines which environment is searched. This is not always the environment that the page shows.
    """
    secret = secret_in((await request.form()).text("secret"))
    environment = next((each for each in ENVIRONMENTS if well_formed(secret, each)), None)
    if could_be_token(secret):
        try:
            operator = await request.operators.identify(secret)
        except OperatorError as error:
            return await identify_page(request, 404, str(error))
        text = f"This is operator {operator.name}'s token, not a key's secret. Revoke the operator under Operators."
        return await identify_page(request, 422, text)
    if environment is None:
        incomplete = "This is not a complete API key secret. Its prefix or checksum is wrong."
        return await identify_page(request, 422, incomplete if secret else "Enter a secret.")
    found = await request.state.stores[environment].keys.identify(secret, request.by)
    if found is None:
        return await identify_page(request, 404, f"No key in {environment} has this secret.")
    key, secret_ends = found
    (status,) = await statuses_of(request, [key])
    return request.page("keys/identify.html", error="", key=key, status=status, secret_ends=secret_ends)


async def content(request: ConsoleRequest) -> dict[str, Any]:
    text = request.parameter("q").strip()
    plan = cast(Plan, request.parameter("plan")) if request.parameter("plan") in PLANS else None
    state = cast(KeyState, request.parameter("state")) if request.parameter("state") in KEY_STATES else None
    sort = cast(KeySort, request.parameter("sort")) if request.parameter("sort") in KEY_SORTS else KEY_SORTS[0]
    after = await request.find_key(request.parameter("after"))
    expiring = request.parameter("expiring") if request.parameter("expiring") in EXPIRING else ""
    expires_by = request.now + parse_duration(expiring) if expiring else None
    of_gate = request.state.bans[request.environment]
    bans = await of_gate.latest(first_timeout=BANS_TIMEOUT) if state in GATE_STATES else None
    banned = [ban.key_id for ban, _ in bans.value] if bans else []
    query = in_state(KeyQuery(text, plan, expires_by=expires_by), state, banned)
    found = await request.store.keys.search(query, now=request.now, sort=sort, after=after, limit=PAGE_SIZE + 1)
    keys = found[:PAGE_SIZE]
    found_statuses = await statuses_of(request, keys)
    bars = await key_bars(request.store.usage, [key.id for key in keys], SPANS["day"], request.now)
    return {
        "q": text,
        "plan": plan or "",
        "state": state or "",
        "expiring": expiring,
        "sort": sort,
        "rows": [(key, status, bars[key.id].totals()) for key, status in zip(keys, found_statuses, strict=True)],
        "more": len(found) > PAGE_SIZE,
        "first": after is None,
        "plans": PLANS,
        "states": KEY_STATES,
        "sorts": KEY_SORTS,
        "expiring_choices": {each: duration_in_words(parse_duration(each)) for each in EXPIRING},
    }


async def statuses_of(request: ConsoleRequest, keys: Sequence[ApiKey]) -> list[KeyStatus | None]:
    """Returns the status of each key. If the gate is not responding, every status is None."""
    with contextlib.suppress(Unavailable):
        if await request.state.gate_responds():
            return [*await statuses(request.state.gate, keys, request.now)]
    return [None] * len(keys)


def plan_of(form: Form) -> Plan:
    """Returns the plan selected in the form. Raises OperatorError if it is missing or unknown."""
    if form.text("plan") not in PLANS:
        raise OperatorError("Choose a plan.")
    return cast(Plan, form.text("plan"))


def scopes_of(form: Form) -> list[Scope]:
    """Returns the scopes selected in the form. Raises OperatorError if none are selected."""
    scopes = [scope for scope in SCOPES if scope in form.texts("scope")]
    if not scopes:
        raise OperatorError("Choose at least one scope. A key without scopes cannot do anything.")
    return scopes


def enterprise_limits(form: Form) -> Limits | None:
    """Returns the limits in the form, or None if the plan is not enterprise.

    Raises OperatorError if a limit is invalid.
    """
    if form.text("plan") != "enterprise":
        return None
    texts = [form.text(name).strip().replace(",", "") for name in ("per_minute", "per_day")]
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        raise OperatorError("The per-minute and per-day limits must be whole numbers.")
    return Limits(int(texts[0]), int(texts[1]))


# One key


async def refresh(request: ConsoleRequest) -> Response:
    """Returns the part of a key's page that reloads every few seconds."""
    return request.part("keys/refresh.html", **await _key_content(request, await request.key()), refreshed=True)


async def history(request: ConsoleRequest) -> Response:
    """Returns the next rows of the key's history table."""
    subject = _subject(await request.key())
    return request.part("audit/history.html", subject=subject, found=await subject.history(request), first=False)


async def change(request: ConsoleRequest) -> Response:
    """Changes a key's name, contact, plan, scopes, expiry and limits. Keeps the expiry if the field is empty."""
    form = await request.form()
    key_id, base = (await request.key()).id, base_of(form, ApiKey)
    try:
        changes = changes_in(form, base, KEY_UNITS, _form_of, lambda each: _changes_of(each, request.now))
        await request.store.keys.update(key_id, changes, request.by, base)
    except (OperatorError, Unavailable) as error:
        return await show(request, form, error=error)
    request.flash("The key was changed. The change takes effect with the next request.")
    return request.redirect(f"/keys/{key_id}")


async def rotate(request: ConsoleRequest) -> Response:
    form, secret = await request.form(), mint(request.environment)
    overlap, seen = form.text("overlap", OVERLAP), parse_whole_number(form.text("newest")) or 0
    key_id = (await request.key()).id
    try:
        await request.store.keys.rotate(key_id, secret, seen, parse_duration(overlap), request.by)
    except (OperatorError, Unavailable) as error:
        return await show(request, overlap=overlap, error=error)
    request.session.new_secrets[key_id] = secret
    return request.redirect(f"/keys/{key_id}")


def _act(act: Callable[[Keys, str, Actor], Awaitable[ApiKey]], done: str) -> Handler:
    async def handler(request: ConsoleRequest) -> Response:
        key_id = (await request.key()).id
        return await request.act(act(request.store.keys, key_id, request.by), done, f"/keys/{key_id}")

    return handler


suspend = _act(Keys.suspend, "The key is suspended. Requests with this key are refused until you resume it.")
end_old_secret = _act(Keys.end_old_secret, "The old secret no longer works.")
resume = _act(Keys.resume, "The key is no longer suspended.")
revoke = _act(Keys.revoke, "The key is revoked. The service now refuses all requests with this key.")


async def confirm_revoke(request: ConsoleRequest) -> Response:
    return request.page("keys/revoke.html", key=await request.key())


async def show(
    request: ConsoleRequest, form: Form | None = None, overlap: str = "", error: Exception | None = None
) -> Response:
    """Shows a key. After a failed change or rotation, reopens the panel with the values in `form` or `overlap`."""
    key = await request.key()
    subject = _subject(key)
    status, message = describe(error)
    shown = form or _form_of(key)
    if form and isinstance(error, Conflict):
        shown = _form_of(cast(ApiKey, error.wanted), form.text("expires"))
    found = await subject.history(request)
    found_secrets = await request.store.keys.secrets(key.id)
    # The operator does not see the response to a HEAD request, so keep the secret for the next GET request.
    secrets = request.session.new_secrets if request.http.method != "HEAD" else {}
    return request.page(
        "keys/show.html", status, **await _key_content(request, key),
        newest=newest_number(found_secrets), old_secret_until=old_secret_until(found_secrets, request.now),
        form=shown, error=with_colleague(message, error, found), **edit_context(key, form, error),
        secret=secrets.pop(key.id, None), plans=PLANS, overlap=overlap or OVERLAP,
        failed="change" if form else "rotate" if overlap else "", subject=subject,
        found=found, first=True,
    )  # fmt: skip


def _subject(key: ApiKey) -> Subject:
    return Subject("key", key.id, f"/keys/{key.id}")


def _form_of(key: ApiKey, expires: str = "") -> Form:
    limits = [("per_minute", str(key.per_minute)), ("per_day", str(key.per_day))] if key.plan == "enterprise" else []
    scopes = [("scope", scope) for scope in key.scopes]
    texts = [("name", key.name), ("contact", key.contact), ("plan", key.plan), ("expires", expires)]
    return Form([*texts, *limits, *scopes])


def _changes_of(form: Form, now: float) -> KeyChanges:
    """Returns the form's values as KeyChanges. Raises OperatorError if a value is invalid."""
    limits, expires = enterprise_limits(form), form.text("expires").strip()
    changes: dict[str, Any] = {name: form.text(name).strip() for name in ("name", "contact") if form.texts(name)}
    if expires:
        changes["expires"] = None if expires == "never" else now + parse_duration(expires, least=1)
    if limits:
        changes |= limits._asdict()
    return KeyChanges(plan=plan_of(form), scopes=tuple(scopes_of(form)), **changes)


async def _key_content(request: ConsoleRequest, key: ApiKey) -> dict[str, Any]:
    bars = (await key_bars(request.store.usage, [key.id], SPANS[request.span], request.now))[key.id]
    (status,) = await statuses_of(request, [key])
    return {
        "key": key,
        "span": request.span,
        "bars": bars,
        "status": status,
        "errors": await request.store.usage.recent_errors(key.id),
    }


# Bans


async def bans(request: ConsoleRequest) -> dict[str, Any]:
    return {"bans": await request.state.bans[request.environment].latest(), "shown_max": BANS_SHOWN}


async def lift(request: ConsoleRequest) -> Response:
    key_id = (await request.key()).id
    path = f"/keys/{key_id}" if (await request.form()).text("back") == "key" else "/bans"
    try:
        after = await lift_ban(request.store, request.state.gate, key_id, request.by)
        request.flash(f"The ban on {key_id} was lifted. {after}")
    except OperatorError as error:
        request.flash(str(error), ok=False)
    request.state.bans[request.environment].invalidate()
    return request.redirect(path)
