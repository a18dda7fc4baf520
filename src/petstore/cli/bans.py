"""`petstore bans`: lists and lifts temporary bans."""

import time

import click

from petstore.backends import Backends
from petstore.cli.completion import key_ids
from petstore.cli.data import actor, on_data, store_of_key
from petstore.cli.options import Group
from petstore.cli.output import Output, Table
from petstore.maintenance.bans import bans_with_keys, lift_ban
from petstore.wording import when


@click.group(cls=Group)
def bans() -> None:
    """List and lift temporary bans. A key is banned if its client keeps sending requests after a 429."""


@bans.command(name="list")
@on_data("read")
async def list_(backends: Backends) -> Output:
    """List current bans, with each key's name and contact."""
    data, rows = [], []
    for ban, key in await bans_with_keys(backends.stores.values(), backends.gate, time.time()):
        name, contact, environment = (key.name, key.contact, key.environment) if key else ("", "", None)
        data.append({**ban._asdict(), "name": name, "contact": contact, "environment": environment})
        rows.append([ban.key_id, environment or "", when(ban.since), when(ban.until), str(ban.times), name, contact])
    columns = ["key", "env", "since", "until", "bans within a day", "name", "contact"]
    return Output(data, Table(columns, rows, "No keys are banned."))


@bans.command()
@click.argument("key_id", metavar="KEY_ID", shell_complete=key_ids)
@on_data("write")
async def lift(backends: Backends, key_id: str) -> Output:
    """Lift a key's ban and clear the key's ban history. KEY_ID is the key's id, as shown by petstore bans list.

    The command also prints whether the key's next request will be admitted. Lifting a ban does not reset the key's
    counters, so the key might still have reached one of its limits.
    """
    store = await store_of_key(backends, key_id)
    after = await lift_ban(store, backends.gate, key_id, actor(backends.clock()))
    data = {"key_id": key_id, "lifted": True, **after._asdict()}
    return Output(data, f"{key_id} is no longer banned. {after}")
