"""`petstore operators`: who may sign in to the console."""

import time
from typing import Any

import click
import msgspec

from petstore.cli import common_options, json_option, print_json, print_table, run, shown_once, when
from petstore.cli.admin import admin
from petstore.operators import Operator
from petstore.service import Backends
from petstore.settings import Settings


@click.group()
def operators() -> None:
    """Name those who may sign in to the console, so that the audit log says who did what.

    An operator's token is shown once, when it is made; only a hash is kept. A running console obeys at once.
    """


@operators.command()
@click.argument("name")
@common_options
@json_option
def add(name: str, as_json: bool, **where: Any) -> None:
    """Name an operator and print the token for the console, once.

    NAME is what the audit log will call this person.

    \b
    Example:
      petstore operators add ada

    A lost token cannot be shown again: revoke the operator and add the same name anew.
    """

    async def work() -> tuple[Operator, str]:
        async with Backends(Settings(**where)) as backends:
            return await admin(backends, "live").add_operator(name)

    operator, token = run(work())
    with shown_once("revoke this operator and add the name anew"):
        if as_json:
            print_json({**msgspec.structs.asdict(operator), "token": token})
            return
        click.echo(f"{operator.name} may sign in to the console with this token:")
        click.echo(f"\n  {token}\n\nKeep it safe: it is not shown again.")


@operators.command(name="list")
@common_options
@json_option
def list_(as_json: bool, **where: Any) -> None:
    """List operators."""

    async def work() -> list[Operator]:
        async with Backends(Settings(**where)) as backends:
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
@common_options
@json_option
def revoke(name: str, as_json: bool, **where: Any) -> None:
    """End an operator's token and sessions at once. NAME is as operators list shows it."""

    async def work() -> None:
        async with Backends(Settings(**where)) as backends:
            await admin(backends, "live").revoke_operator(name)

    run(work())
    if as_json:
        print_json({"name": name, "revoked": time.time()})
    else:
        click.echo(f"{name} is signed out and cannot sign in any more.")
