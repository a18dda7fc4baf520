"""`petstore copy`: copies all data to other backends, for example from a data directory to PostgreSQL and Redis."""

import asyncio
import contextlib
import re
import shlex
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import msgspec

from petstore import data_dir
from petstore.backends import (
    Backends,
    check_copied,
    mark_gate_clean,
    open_gate_for,
    open_stores_for,
    prepare,
    recover_gate,
)
from petstore.cli.data import OPERATOR_BOUNDS, actor, check_data, naming_servers
from petstore.cli.options import Command, data_options, settings_from, url_of
from petstore.cli.output import Output, Table, progress
from petstore.cli.suggestions import suggestion
from petstore.errors import OperatorError
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.maintenance import copy as copying
from petstore.settings import Settings, check_url, without_password
from petstore.store import Store, close_stores
from petstore.wording import counted


@click.command(cls=Command)
@click.option("--to-store", metavar="URL|DIR", help="The target store, either postgresql://… or a directory.")
@click.option(
    "--to-store-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read the URL of the target store from this file, to keep the password out of the process list.",
)
@click.option("--to-gate", metavar="URL", help="The target gate: redis://… [default: a file in the target directory]")
@click.option(
    "--to-gate-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read the URL of the target gate from this file, to keep the password out of the process list.",
)
@data_options
def copy(
    to_store: str | None,
    to_store_file: Path | None,
    to_gate: str | None,
    to_gate_file: Path | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Copy both environments to other backends, including their keys, audit logs, usage and quotas.

    Quotas are the current bans and the number of requests counted towards each key's limits.

    Stop the service first. The target must be empty. After copying the data, the command compares every row with the
    original. If the copy is interrupted, run the command again to see how to empty the target.

    \b
    Examples:
      petstore copy --to-store-file /etc/petstore-store --to-gate-file /etc/petstore-gate
      petstore copy --store postgresql://petstore@db/petstore --gate redis://cache --to-store ./data
    """
    to_store = url_of("to_store", to_store, to_store_file)
    if to_store is None:
        raise click.UsageError("Missing option '--to-store' or '--to-store-file'.")
    source = settings_from(where)
    asyncio.run(check_data(source))
    target = _target(source, to_store, url_of("to_gate", to_gate, to_gate_file))
    began = time.monotonic()
    copied = _copied(source, target)
    rows = [[each.what, f"{each.rows:,}", each.checksum] for each in copied]
    sentences = [
        f"\nDone in {time.monotonic() - began:.1f} s. To start the service with the copied data, run:",
        f"  {suggestion('serve', _options(target, to_store_file, to_gate_file))}",
    ]
    if target.store is not None and target.gate is None:
        sentences.append("Quotas were not copied, because --to-gate was not given. All counters will start at zero.")
    table = Table(["copied and compared", "rows", "checksum"], rows, "")
    Output([each._asdict() for each in copied], table, *sentences).print(as_json)


def _target(source: Settings, to_store: str, to_gate: str | None) -> Settings:
    """Returns the target's settings. Raises OperatorError if an option is invalid."""
    if to_gate is not None:
        check_url("--to-gate", to_gate)
        if not to_gate.startswith(("redis", "valkey")):
            raise OperatorError(f"--to-gate {to_gate.partition(':')[0]}: use redis://host:6379/0")
    if "://" in to_store:
        check_url("--to-store", to_store)
        if not to_store.startswith(("postgresql://", "postgres://")):
            scheme = to_store.partition(":")[0]
            raise OperatorError(f"--to-store {scheme}: use postgresql://user@host/database or a directory")
        return Settings(data=source.data, store=to_store, gate=to_gate, pgbouncer=source.pgbouncer)
    if re.match("[^/:]+:.*@", to_store):  # this looks like user:password@host rather than a directory
        raise OperatorError("--to-store must start with postgresql:// if it is a URL, or with ./ if it is a directory")
    target = Settings(data=Path(to_store), gate=to_gate)
    if target.data.resolve() == source.data.resolve() and (source.store is None or source.gate is None):
        raise OperatorError("--to-store is the directory of the source store or gate; use a different directory")
    return target


def _copied(source: Settings, target: Settings) -> list[copying.Copied]:
    """Copies all data. If the target is a directory, recovers its gate first and marks the gate as clean afterwards."""
    if target.store is None and target.data.is_dir():
        recover_gate(target)
    try:
        with naming_servers(source), naming_servers(target):
            return asyncio.run(_copy(source, target))
    finally:
        if target.store is None and target.data.is_dir():
            mark_gate_clean(target)


async def _copy(source: Settings, target: Settings) -> list[copying.Copied]:
    name = without_password(source.store) if source.store else str(source.data.resolve())
    # Take the exclusive lock, because a running service could add animals that the copy would miss.
    async with (
        Backends(source, alone=source.store is None, bounds=OPERATOR_BOUNDS) as backends,
        _opened(target) as (stores, gate),
    ):
        await check_copied(backends.stores)
        # If the service was killed, collect the remaining admissions, as the service would on startup.
        await backends.collect_admissions(time.time())
        await copying.check_target(stores, gate, _how_to_empty(target))
        with progress("Copying", await copying.size_of(backends.stores)) as bar:
            copied = await copying.copy_stores(backends.stores, stores, name, bar.update)
        if gate is not None:
            copied.append(await copying.copy_quotas(backends.gate, gate))
        await copying.finish(stores)
        entry = actor(time.time()).entry("copy", name, counted(sum(each.rows for each in copied), "row"))
        for store in stores.values():
            await store.audit.record(entry)
        return copied


@contextlib.asynccontextmanager
async def _opened(target: Settings) -> AsyncIterator[tuple[dict[Environment, Store], Gate | None]]:
    """Opens the target. The gate is None if the stores are in PostgreSQL and --to-gate was not given."""
    async with contextlib.AsyncExitStack() as opened:
        if target.store is None:
            prepare(target)
            opened.enter_context(data_dir.shared_lock(target.data))
        gate = None
        if target.gate is not None or target.store is None:
            gate = open_gate_for(msgspec.structs.replace(target, gate_outage="refuse"))
            opened.push_async_callback(gate.close)
        stores = open_stores_for(target, gate, bounds=OPERATOR_BOUNDS)
        opened.push_async_callback(close_stores, stores.values())
        yield stores, gate


def _how_to_empty(target: Settings) -> str:
    if target.store is None:
        return f"`rm -r {shlex.quote(str(target.data))}`"
    return "DROP SCHEMA petstore_live, petstore_staging CASCADE" + ("; in Redis, FLUSHDB" if target.gate else "")


def _options(target: Settings, store_file: Path | None, gate_file: Path | None) -> str:
    """Returns the options that `serve` needs to use the target."""
    words = [] if target.store else ["--data", str(target.data.absolute())]
    for name, url, file in (("--store", target.store, store_file), ("--gate", target.gate, gate_file)):
        if url is not None:
            words += [f"{name}-file", str(file.absolute())] if file else [name, without_password(url)]
    return shlex.join(words)
