"""`petstore operators`: adds, lists and revokes operators, who can sign in to the console."""

from typing import Any

import click
import msgspec

from petstore.backends import Backends
from petstore.cli.addresses import recorded_console
from petstore.cli.data import act, actor, on_data
from petstore.cli.options import Group, data_options
from petstore.cli.output import Output, Table
from petstore.cli.suggestions import as_typed
from petstore.operators import ROLES, Operator, Role, mint_token, new_operator
from petstore.wording import when


@click.group(cls=Group)
def operators() -> None:
    """Add, list and revoke operators, who can sign in to the console.

    The audit log shows their names. Each operator's token is shown only once, when it is created, because only its hash
    is stored. Changes take effect with the next request to a running console.
    """


@operators.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="operator", show_default=True,
              help="Operators can change everything. Viewers cannot change anything.")  # fmt: skip
@data_options
def add(name: str, role: Role, as_json: bool, **where: Any) -> None:
    """Add an operator and print the operator's token for the console. The token is shown only once.

    NAME is the operator's name in the audit log.

    \b
    Example:
      petstore operators add ada

    If the token is lost, revoke the operator and add them again with the same name.
    """
    token = mint_token()

    async def work(backends: Backends) -> Operator:
        by = actor(backends.clock())
        operator = new_operator(name, by.at, role)
        await backends.stores["live"].operators.add(operator, token, by)
        return operator

    operator = act(where, work, access="create")
    url = recorded_console(where["data"])
    Output(
        {**msgspec.structs.asdict(operator), "token": token},
        f"{operator.name} can sign in to the console at {url} with this token:",
        f"\n  {token}\n\nKeep this token safe. It will not be shown again.",
        as_typed("If the console is not running, start it with `petstore console`."),
        remedy="Revoke this operator and add them again with the same name.",
    ).print(as_json)


@operators.command(name="list")
@on_data("read")
async def list_(backends: Backends) -> Output:
    """List operators."""
    found = await backends.stores["live"].operators.all()
    rows = [[o.name, o.role, when(o.created), when(o.revoked) if o.revoked else ""] for o in found]
    empty = as_typed("No operators yet. Add one with `petstore operators add NAME`.")
    return Output(found, Table(["name", "role", "since", "revoked"], rows, empty))


@operators.command()
@click.argument("name")
@on_data("write")
async def revoke(backends: Backends, name: str) -> Output:
    """Revoke an operator. The operator's token stops working, and all of the operator's sessions end.

    NAME is the operator's name, as shown by petstore operators list.
    """
    by = actor(backends.clock())
    await backends.stores["live"].operators.revoke(name, by)
    return Output({"name": name, "revoked": by.at}, f"{name} was signed out and can no longer sign in.")
