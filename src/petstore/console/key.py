"""One key: its usage, recent refusals and history; change, rotate, suspend, resume, revoke."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.responses import Response

from petstore.admin.actions import Admin
from petstore.admin.charts import key_bars
from petstore.admin.durations import parse_duration
from petstore.console.forms import Form
from petstore.console.keys import enterprise_limits, plan_of, scopes_of, statuses_of
from petstore.console.requests import ConsoleRequest, Handler, Subject, describe
from petstore.errors import OperatorError, Unavailable
from petstore.keys import ApiKey, KeyChanges
from petstore.plans import PLANS
from petstore.usage import SPANS

OVERLAP = "24h"


async def refresh(request: ConsoleRequest) -> Response:
    """The part that the page loads again every few seconds."""
    return request.part("keys/refresh.html", **await _content(request, await request.key()), refreshed=True)


async def history(request: ConsoleRequest) -> Response:
    """The next entries of the history."""
    subject = _subject(await request.key())
    return request.part("audit/history.html", subject=subject, found=await subject.history(request), first=False)


async def change(request: ConsoleRequest) -> Response:
    """Change name, plan, scopes, expiry and limits. An empty expiry stays as it is."""
    form = await request.form()
    key_id = (await request.key()).id
    try:
        await request.admin.update_key(key_id, _update(form, request.now))
    except (OperatorError, Unavailable) as error:
        return await page(request, form, error=error)
    request.flash("The key was changed. The change holds from the next request on.")
    return request.redirect(f"/keys/{key_id}")


async def rotate(request: ConsoleRequest) -> Response:
    overlap = (await request.form()).text("overlap", OVERLAP)
    key_id = (await request.key()).id
    try:
        _, secret, _ = await request.admin.rotate_key(key_id, parse_duration(overlap))
    except (OperatorError, Unavailable) as error:
        return await page(request, overlap=overlap, error=error)
    request.session.new_secrets[key_id] = secret
    return request.redirect(f"/keys/{key_id}")


def _action(action: Callable[[Admin, str], Awaitable[ApiKey]], done: str) -> Handler:
    async def act(request: ConsoleRequest) -> Response:
        key_id = (await request.key()).id
        return await request.act(action(request.admin, key_id), done, f"/keys/{key_id}")

    return act


suspend = _action(
    Admin.suspend_key, "The key is suspended. The service refuses it from the next request on, until it is resumed."
)
resume = _action(Admin.resume_key, "The key is no longer suspended.")
revoke = _action(Admin.revoke_key, "The key is revoked. The service refuses it from the next request on.")


async def confirm_revoke(request: ConsoleRequest) -> Response:
    return request.page("keys/revoke.html", key=await request.key())


async def page(
    request: ConsoleRequest, form: Form | None = None, overlap: str = "", error: Exception | None = None
) -> Response:
    """`form` and `overlap` are the values of a change or a rotation that failed; its panel is open."""
    key = await request.key()
    subject = _subject(key)
    status, message = describe(error)
    secrets = request.session.new_secrets if request.http.method != "HEAD" else {}  # HEAD shows nothing to the operator
    return request.page(
        "keys/show.html", status, **await _content(request, key), form=form or _form_of(key), error=message,
        secret=secrets.pop(key.id, None), plans=PLANS, overlap=overlap or OVERLAP,
        failed="change" if form else "rotate" if overlap else "", subject=subject,
        found=await subject.history(request), first=True,
    )  # fmt: skip


def _subject(key: ApiKey) -> Subject:
    return Subject("key", key.id, f"/keys/{key.id}")


def _form_of(key: ApiKey) -> Form:
    limits = [("per_minute", str(key.per_minute)), ("per_day", str(key.per_day))] if key.plan == "enterprise" else []
    scopes = [("scope", scope) for scope in key.scopes]
    return Form([("name", key.name), ("plan", key.plan), *limits, *scopes])


def _update(form: Form, now: float) -> KeyChanges:
    """Raises OperatorError."""
    limits, text = enterprise_limits(form), form.text("expires").strip()
    expires: float | msgspec.UnsetType | None = msgspec.UNSET
    if text:
        expires = None if text == "never" else now + parse_duration(text, least=1)
    return KeyChanges(
        plan=plan_of(form),
        name=form.text("name").strip(),
        scopes=tuple(scopes_of(form)),
        expires=expires,
        **(limits._asdict() if limits else {}),
    )


async def _content(request: ConsoleRequest, key: ApiKey) -> dict[str, Any]:
    bars = (await key_bars(request.store.usage, [key.id], SPANS[request.span], request.now))[key.id]
    (status,) = await statuses_of(request, [key])
    return {
        "key": key,
        "span": request.span,
        "bars": bars,
        "status": status,
        "errors": await request.store.usage.recent_errors(key.id),
    }
