"""`petstore operators`: adds, lists and revokes the people who may sign in to the console."""

import time
from typing import Any

import click
import msgspec

from petstore.cli.admin import admin, data_to_create, existing_data, run
from petstore.cli.completion import operator_names
from petstore.cli.options import Group, backend_options, json_option, settings_from
from petstore.cli.output import print_json, print_table, printing_secret, program, when
from petstore.operators import ROLES, Operator, Role


@click.group(cls=Group)
def operators() -> None:
    """Add, list and revoke the people who may sign in to the console.

    The audit log names them. An operator's token is shown once, when it is created; only its hash is stored. A running
    console obeys from the next request on.
    """


@operators.command()
@click.argument("name")
@backend_options
@click.option("--role", type=click.Choice(ROLES), default="operator", show_default=True,
              help="An operator may change everything, a viewer nothing.")  # fmt: skip
@json_option
def add(name: str, role: Role, as_json: bool, **where: Any) -> None:
    """Add an operator and print the token for the console, once.

    NAME is this person's name in the audit log.

    \b
    Example:
      petstore operators add ada

    A lost token cannot be shown again: revoke the operator and add the same name again.
    """

    async def work() -> tuple[Operator, str]:
        async with data_to_create(settings_from(where)) as backends:
            return await admin(backends, "live").add_operator(name, role)

    operator, token = run(work())
    with printing_secret("revoke this operator and add the name again"):
        if as_json:
            print_json({**msgspec.structs.asdict(operator), "token": token})
            return
        click.echo(f"{operator.name} may sign in to the console with this token:")
        click.echo(f"\n  {token}\n\nKeep it safe: it is not shown again.")


@operators.command(name="list")
@backend_options
@json_option
def list_(as_json: bool, **where: Any) -> None:
    """List operators."""

    async def work() -> list[Operator]:
        async with existing_data(settings_from(where)) as backends:
            return await backends.stores["live"].operators()

    found = run(work())
    if as_json:
        print_json(found)
        return
    print_table(
        ["name", "role", "since", "revoked"],
        [[o.name, o.role, when(o.created), when(o.revoked) if o.revoked else ""] for o in found],
        f"No operators yet: {program()} operators add NAME",
    )


@operators.command()
@click.argument("name", shell_complete=operator_names)
@backend_options
@json_option
def revoke(name: str, as_json: bool, **where: Any) -> None:
    """End an operator's token and sessions at once. NAME is as operators list shows it."""

    async def work() -> None:
        async with existing_data(settings_from(where)) as backends:
            await admin(backends, "live").revoke_operator(name)

    run(work())
    if as_json:
        print_json({"name": name, "revoked": time.time()})
    else:
        click.echo(f"{name} is signed out and can no longer sign in.")
