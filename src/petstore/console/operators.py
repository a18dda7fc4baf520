"""Lists, adds and revokes operators, and changes their roles. Both environments share the same operators."""

from collections.abc import Awaitable, Callable
from typing import cast

from starlette.responses import Response

from petstore.console.forms import Form
from petstore.console.requests import ConsoleRequest
from petstore.errors import OperatorError
from petstore.operators import ROLES, Role, mint_token, new_operator


async def add(request: ConsoleRequest) -> Response:
    form = await request.form()
    name = form.text("name").strip()
    try:
        token, by = mint_token(), request.by
        await request.operators.add(new_operator(name, by.at, _role(form)), token, by)
    except OperatorError as error:
        return await page(request, form, str(error), 422)
    request.session.new_secrets[f"operator {name}"] = token
    return request.redirect("/operators")


async def set_role(request: ConsoleRequest) -> Response:
    form = await request.form()
    name, role = form.text("name"), _role(form)
    done = f"{name} is now {'a viewer' if role == 'viewer' else 'an operator'}."
    return await _change(request, name, lambda: request.operators.set_role(name, role, request.by), done)


async def revoke(request: ConsoleRequest) -> Response:
    name = (await request.form()).text("name")
    done = f"{name} was signed out and can no longer sign in."
    return await _change(request, name, lambda: request.operators.revoke(name, request.by), done)


async def _change(request: ConsoleRequest, name: str, action: Callable[[], Awaitable[None]], done: str) -> Response:
    """Changes another operator's role or revokes another operator.

    Operators cannot do this to themselves, so that the last operator cannot lock everyone out by mistake.
    """
    if name == request.session.name:
        text = "You cannot change your own role or revoke yourself. Ask another operator, or use the command line."
        request.flash(text, ok=False)
        return request.redirect("/operators")
    return await request.act(action(), done, "/operators")


async def page(request: ConsoleRequest, form: Form | None = None, error: str = "", status: int = 200) -> Response:
    # Read the operators before removing the tokens from the session, so that a failed read does not lose the tokens.
    found = await request.operators.all()
    secrets = request.session.new_secrets if request.http.method == "GET" else {}
    tokens = {
        name.removeprefix("operator "): secrets.pop(name) for name in list(secrets) if name.startswith("operator ")
    }
    operators = sorted(found, key=lambda each: (each.revoked is not None, each.name))
    return request.page(
        "operators/list.html", status, operators=operators,
        tokens=tokens, roles=ROLES, form=form or Form([("role", "operator")]), error=error,
    )  # fmt: skip


def _role(form: Form) -> Role:
    return cast(Role, form.text("role")) if form.text("role") in ROLES else "viewer"
