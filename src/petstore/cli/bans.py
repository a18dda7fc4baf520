"""`petstore bans`: lists and lifts temporary bans."""

import time

import click

from petstore.backends import Backends
from petstore.cli.admin import admin_of_key, on_data
from petstore.cli.completion import key_ids
from petstore.cli.options import Group
from petstore.cli.output import Output, Table
from petstore.gate import bans_in_force
from petstore.wording import when


@click.group(cls=Group)
def bans() -> None:
    """List and lift temporary bans. A key is banned when it goes on sending requests after a 429."""


@bans.command(name="list")
@on_data
async def list_(backends: Backends) -> Output:
    """List the bans in force."""
    found = await bans_in_force(backends.gate, time.time())
    rows = [[ban.key_id, when(ban.since), when(ban.until), str(ban.times)] for ban in found]
    table = Table(["key", "since", "until", "bans within a day"], rows, "No key is banned.")
    return Output([ban._asdict() for ban in found], table)


@bans.command()
@click.argument("key_id", metavar="KEY_ID", shell_complete=key_ids)
@on_data
async def lift(backends: Backends, key_id: str) -> Output:
    """End a key's ban and forget its earlier bans. KEY_ID is the key's id, as bans list shows it."""
    await (await admin_of_key(backends, key_id)).lift_ban(key_id)
    return Output({"key_id": key_id, "lifted": True}, f"{key_id} is no longer banned.")
