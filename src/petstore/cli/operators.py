"""`petstore operators`: adds, lists and revokes the people who may sign in to the console."""

import time

import click
import msgspec

from petstore.backends import Backends
from petstore.cli.data import admin, on_data
from petstore.cli.options import Group
from petstore.cli.output import Output, Table, program
from petstore.operators import ROLES, Role
from petstore.wording import when


@click.group(cls=Group)
def operators() -> None:
    """Add, list and revoke the people who may sign in to the console.

    The audit log names them. An operator's token is shown once, when it is created; only its hash is stored. A running
    console obeys from the next request on.
    """


@operators.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="operator", show_default=True,
              help="An operator may change everything, a viewer nothing.")  # fmt: skip
@on_data("create")
async def add(backends: Backends, name: str, role: Role) -> Output:
    """Add an operator and print the token for the console, once.

    NAME is this person's name in the audit log.

    \b
    Example:
      petstore operators add ada

    A lost token cannot be shown again: revoke the operator and add the same name again.
    """
    operator, token = await admin(backends, "live").add_operator(name, role)
    return Output(
        {**msgspec.structs.asdict(operator), "token": token},
        f"{operator.name} may sign in to the console with this token:",
        f"\n  {token}\n\nKeep it safe: it is not shown again.",
        remedy="revoke this operator and add the name again",
    )


@operators.command(name="list")
@on_data("read")
async def list_(backends: Backends) -> Output:
    """List operators."""
    found = await backends.stores["live"].operators.all()
    rows = [[o.name, o.role, when(o.created), when(o.revoked) if o.revoked else ""] for o in found]
    empty = f"No operators yet: {program()} operators add NAME"
    return Output(found, Table(["name", "role", "since", "revoked"], rows, empty))


@operators.command()
@click.argument("name")
@on_data("write")
async def revoke(backends: Backends, name: str) -> Output:
    """End an operator's token and sessions at once. NAME is as operators list shows it."""
    await admin(backends, "live").revoke_operator(name)
    return Output({"name": name, "revoked": time.time()}, f"{name} is signed out and can no longer sign in.")
