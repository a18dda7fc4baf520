"""`petstore bans`: lists and lifts temporary bans."""

import time
from typing import Any

import click

from petstore.cli.admin import admin_of_key, existing_data, run
from petstore.cli.completion import key_ids
from petstore.cli.options import Group, backend_options, json_option, settings_from
from petstore.cli.output import print_json, print_table, when
from petstore.gate import Ban, bans_in_force


@click.group(cls=Group)
def bans() -> None:
    """List and lift temporary bans. A key is banned when it goes on sending requests after a 429."""


@bans.command(name="list")
@backend_options
@json_option
def list_(as_json: bool, **where: Any) -> None:
    """List the bans in force."""

    async def work() -> list[Ban]:
        async with existing_data(settings_from(where)) as backends:
            return await bans_in_force(backends.gate, time.time())

    found = run(work())
    if as_json:
        print_json([ban._asdict() for ban in found])
        return
    print_table(
        ["key", "since", "until", "bans within a day"],
        [[ban.key_id, when(ban.since), when(ban.until), str(ban.times)] for ban in found],
        "No key is banned.",
    )


@bans.command()
@click.argument("key_id", metavar="KEY_ID", shell_complete=key_ids)
@backend_options
@json_option
def lift(key_id: str, as_json: bool, **where: Any) -> None:
    """End a key's ban and forget its earlier bans. KEY_ID is the key's id, as bans list shows it."""

    async def work() -> None:
        async with existing_data(settings_from(where)) as backends:
            await (await admin_of_key(backends, key_id)).lift_ban(key_id)

    run(work())
    if as_json:
        print_json({"key_id": key_id, "lifted": True})
    else:
        click.echo(f"{key_id} is no longer banned.")
