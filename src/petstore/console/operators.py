"""Operators: list, add, change the role, revoke. They are the same for both environments."""

from typing import cast

from starlette.responses import Response

from petstore.console.forms import Form
from petstore.console.requests import ConsoleRequest
from petstore.errors import OperatorError
from petstore.operators import ROLES, Role


async def show_list(request: ConsoleRequest) -> Response:
    return await _page(request)


async def add(request: ConsoleRequest) -> Response:
    form = await request.form()
    name = form.text("name").strip()
    try:
        _, token = await request.live_admin.add_operator(name, _role(form))
    except OperatorError as error:
        return await _page(request, form, str(error), 422)
    request.session.new_secrets[f"operator {name}"] = token
    return request.redirect("/operators")


async def set_role(request: ConsoleRequest) -> Response:
    form = await request.form()
    name, role = form.text("name"), _role(form)
    try:
        _refuse_own(request, name)
        await request.live_admin.set_role(name, role)
        request.flash(f"{name} is now {'a viewer' if role == 'viewer' else 'an operator'}.")
    except OperatorError as error:
        request.flash(str(error), ok=False)
    return request.redirect("/operators")


async def revoke(request: ConsoleRequest) -> Response:
    name = (await request.form()).text("name")
    try:
        _refuse_own(request, name)
        await request.live_admin.revoke_operator(name)
        request.flash(f"{name} is signed out and cannot sign in any more.")
    except OperatorError as error:
        request.flash(str(error), ok=False)
    return request.redirect("/operators")


async def _page(request: ConsoleRequest, form: Form | None = None, error: str = "", status: int = 200) -> Response:
    found = await request.state.stores["live"].operators()  # if this fails, the tokens are shown by the next page
    secrets = request.session.new_secrets if request.http.method == "GET" else {}
    tokens = {
        name.removeprefix("operator "): secrets.pop(name) for name in list(secrets) if name.startswith("operator ")
    }
    operators = sorted(found, key=lambda each: (each.revoked is not None, each.name))
    return request.page(
        "operators/list.html", status, operators=operators,
        tokens=tokens, roles=ROLES, form=form or Form([("role", "operator")]), error=error,
    )  # fmt: skip


def _refuse_own(request: ConsoleRequest, name: str) -> None:
    """An operator who revokes the own access by mistake could lock out everybody. Raises OperatorError."""
    if name == request.session.name:
        raise OperatorError("You cannot change or revoke yourself. Ask another operator, or use the command line.")


def _role(form: Form) -> Role:
    return cast(Role, form.text("role")) if form.text("role") in ROLES else "viewer"
