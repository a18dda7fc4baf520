"""`petstore operators`: adds, lists and revokes the people who may sign in to the console."""

import time
from typing import Any

import click
import msgspec

from petstore.cli.admin import admin, run
from petstore.cli.options import backend_options, json_option, settings_from
from petstore.cli.output import print_json, print_table, printing_secret, when
from petstore.operators import Operator
from petstore.service import Backends


@click.group()
def operators() -> None:
    """Add, list and revoke the people who may sign in to the console.

    The audit log names them. An operator's token is shown once, when it is created; only its hash is stored. A running
    console obeys from the next request on.
    """


@operators.command()
@click.argument("name")
@backend_options
@json_option
def add(name: str, as_json: bool, **where: Any) -> None:
    """Add an operator and print the token for the console, once.

    NAME is this person's name in the audit log.

    \b
    Example:
      petstore operators add ada

    A lost token cannot be shown again: revoke the operator and add the same name again.
    """

    async def work() -> tuple[Operator, str]:
        async with Backends(settings_from(where)) as backends:
            return await admin(backends, "live").add_operator(name)

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
        async with Backends(settings_from(where)) as backends:
            return await backends.stores["live"].operators()

    found = run(work())
    if as_json:
        print_json(found)
        return
    print_table(
        ["name", "since", "revoked"],
        [[o.name, when(o.created), when(o.revoked) if o.revoked else ""] for o in found],
        "No operators yet: petstore operators add NAME",
    )


@operators.command()
@click.argument("name")
@backend_options
@json_option
def revoke(name: str, as_json: bool, **where: Any) -> None:
    """End an operator's token and sessions at once. NAME is as operators list shows it."""

    async def work() -> None:
        async with Backends(settings_from(where)) as backends:
            await admin(backends, "live").revoke_operator(name)

    run(work())
    if as_json:
        print_json({"name": name, "revoked": time.time()})
    else:
        click.echo(f"{name} is signed out and can no longer sign in.")
