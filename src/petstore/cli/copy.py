"""`petstore copy`: copies all data to other backends, for example from a data directory to PostgreSQL and Redis."""

import asyncio
import contextlib
import re
import shlex
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from petstore import data_dir
from petstore.backends import Backends, open_gate_for, open_stores_for, without_fallback
from petstore.cli.data import OPERATOR_BOUNDS, actor, announce_all, check_data
from petstore.cli.options import Command, data_options, settings_from, url_of
from petstore.cli.output import Output, Table, progress
from petstore.cli.suggestions import as_typed, suggestion
from petstore.errors import OperatorError, Unavailable
from petstore.gate import Gate
from petstore.maintenance import copy as copying
from petstore.settings import Settings, check_url, without_password
from petstore.store import StorePolicy, close_stores, new_stores
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

    Stop the service first. The target must not contain a store. After copying the data, the command compares every row
    with the original. The copy appears all at once. If the command fails or is interrupted, repeat it.

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
    options = _options(target, to_store_file, to_gate_file)
    copied = asyncio.run(_copied(source, target, options))
    rows = [[each.what, f"{each.rows:,}", each.checksum] for each in copied]
    sentences = [
        f"\nDone in {time.monotonic() - began:.1f} s. To start the service with the copied data, run:",
        f"  {suggestion('serve', options)}",
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


async def _copied(source: Settings, target: Settings, options: str) -> list[copying.Copied]:
    if source.store is not None and not source.pgbouncer:  # PgBouncer keeps connections of services that have stopped
        await _check_stopped(source.store)
    name = f"the source {_names(source)}"
    with copying.naming(name):
        # Take the exclusive lock, because a running service could add animals that the copy would miss.
        async with Backends(source, alone=source.store is None, bounds=OPERATOR_BOUNDS) as backends:
            # If the service was killed, collect the remaining admissions, as the service would on startup.
            await backends.collect_admissions(time.time())
            original = copying.Source(name, backends.stores, backends.gate)
            with _errors_of(target, options):
                if target.store is None:
                    copied = await _copy_to_directory(original, target, _store_name(source))
                else:
                    copied = await _copy_to_database(original, target, target.store, _store_name(source))
                if target.gate is not None:
                    async with _gate_of(target) as gate:
                        await announce_all(gate)
                return copied


@contextlib.contextmanager
def _errors_of(target: Settings, options: str) -> Iterator[None]:
    """Names the target in Unavailable errors, and completes the commands that they suggest with its options.

    Commands in other errors get the options of the source.
    """
    try:
        yield
    except Unavailable as error:
        raise click.ClickException(as_typed(f"the target {_names(target)}: {error}", options)) from error


async def _check_stopped(url: str) -> None:
    """Raises OperatorError if other processes of Petstore are connected to the database."""
    try:
        import asyncpg

        from petstore.store.postgres.doctor import clients
    except ImportError:
        return  # opening the source reports this error and those below
    deadline = time.monotonic() + data_dir.LOCK_TIMEOUT  # the server needs a moment to notice that a process has ended
    try:
        while found := await clients(url):
            if time.monotonic() > deadline:
                raise OperatorError(
                    f"{without_password(url)} is in use: processes of Petstore are connected to it from"
                    f" {', '.join(found)}. Stop the service and the console on every node"
                )
            await asyncio.sleep(0.1)
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return


async def _copy_to_database(source: copying.Source, target: Settings, url: str, name: str) -> list[copying.Copied]:
    """Creates the schemas and copies everything to them in one transaction."""
    policy = StorePolicy(pgbouncer=target.pgbouncer, bounds=OPERATOR_BOUNDS)
    async with (
        contextlib.nullcontext() if target.gate is None else _gate_of(target) as gate,
        new_stores(url, policy) as stores,
    ):
        return await _copy(source, stores, gate, name)


async def _copy_to_directory(source: copying.Source, target: Settings, name: str) -> list[copying.Copied]:
    """Copies everything to a subdirectory, and then moves the files into place like those of a restore."""
    with data_dir.exclusive_lock(target.data):
        if data_dir.has_data(target.data):
            raise OperatorError(f"--to-store {target.data}: already contains Petstore data; choose an empty directory")
        with data_dir.stage_restore(target.data) as new:
            staged = msgspec.structs.replace(target, data=new)
            async with _gate_of(staged) as gate:
                stores = open_stores_for(staged, None, bounds=OPERATOR_BOUNDS)
                try:
                    copied = await _copy(source, stores, gate, name)
                finally:
                    await close_stores(stores.values())
            data_dir.commit_restore(target.data)
    return copied


async def _copy(source: copying.Source, stores: copying.Stores, gate: Gate | None, name: str) -> list[copying.Copied]:
    if gate is not None:
        await copying.check_gate(source, gate)
    with progress("Copying", await source.size()) as bar:
        copied = await copying.copy_stores(source, stores, bar.update)
    if gate is not None:
        copied.append(await copying.copy_quotas(source, gate))
    entry = actor(time.time()).entry("copy", name, counted(sum(each.rows for each in copied), "row"))
    for store in stores.values():
        await store.audit.record(entry)
    return copied


@contextlib.asynccontextmanager
async def _gate_of(settings: Settings) -> AsyncIterator[Gate]:
    """Opens a gate without the fallback, which would hide an outage."""
    gate = open_gate_for(without_fallback(settings))
    try:
        yield gate
    finally:
        await gate.close()


def _store_name(settings: Settings) -> str:
    return without_password(settings.store) if settings.store else str(settings.data.resolve())


def _names(settings: Settings) -> str:
    return " and ".join([_store_name(settings), *([without_password(settings.gate)] if settings.gate else [])])


def _options(target: Settings, store_file: Path | None, gate_file: Path | None) -> str:
    """Returns the options that `serve` needs to use the target."""
    words = [] if target.store else ["--data", str(target.data.absolute())]
    for name, url, file in (("--store", target.store, store_file), ("--gate", target.gate, gate_file)):
        if url is not None:
            words += [f"{name}-file", str(file.absolute())] if file else [name, without_password(url)]
    return shlex.join(words)
