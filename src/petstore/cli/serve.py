"""`petstore serve`: starts the service."""

import asyncio
import contextlib
import logging
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from petstore import data_dir, service
from petstore.audit import Actor
from petstore.backends import (
    Backends,
    open_gate_for,
    open_stores_for,
    prepare,
    recover_gate,
    without_fallback,
)
from petstore.cli import demo as demo_data
from petstore.cli.addresses import record_service, service_address
from petstore.cli.banner import print_banner
from petstore.cli.data import OPERATOR_BOUNDS, naming_servers
from petstore.cli.options import Command, check_settings, setting_options, settings_from
from petstore.cli.output import printing_secret
from petstore.errors import OperatorError
from petstore.keys import Environment, mint, new_key
from petstore.observability import logs
from petstore.observability.logs import event
from petstore.server.sockets import activated_addresses, check_port
from petstore.settings import Settings
from petstore.store import close_stores


@click.command(cls=Command, context_settings={"auto_envvar_prefix": "PETSTORE"})
@setting_options
@click.option("--show-first-key", is_flag=True,
              help="Create and print a key if none exists, even if the output is not a terminal.")  # fmt: skip
@click.option("--demo", is_flag=True,
              help="Before starting, fill an empty data directory with example animals, keys and usage.")  # fmt: skip
def serve(demo: bool, show_first_key: bool, **options: Any) -> None:
    """Start the service. To stop it, press Ctrl-C or send SIGTERM. To reload it without dropping requests, send SIGHUP.

    A reload loads new code, and rereads the certificate, its private key, and the files given with --store-file and
    --gate-file. Changes to other options and variables require a restart.

    \b
    Examples:
      petstore serve
      petstore serve --demo --data demo-data
      petstore serve --host 0.0.0.0 --port 80 --workers 4 --public-url https://api.example.com
      petstore serve --tls-cert fullchain.pem --tls-key key.pem --port 443

    You can also set each option with an environment variable, such as PETSTORE_PORT or PETSTORE_WORKERS.
    """
    logs.configure()
    settings = settings_from(options)
    check_settings(settings)
    check_port(settings.host, settings.port)
    addresses = activated_addresses()
    asyncio.run(_check_urls(settings))
    is_second = data_dir.is_locked(settings.data)
    _prepare_data(settings)
    demo_keys = asyncio.run(_demo_keys(settings)) if demo else None
    # If standard output is not a terminal, it might be a log, which must not contain secrets.
    may_show = show_first_key or sys.stdout.isatty()

    async def greet() -> None:
        with naming_servers(settings):
            secrets = demo_keys if demo_keys is not None else await _first_key(settings, create=may_show)
        record_service(settings.data, service_address(settings, [*addresses] or [(settings.host, settings.port)]))
        remedy = "Create another key with `petstore keys create --plan free`."
        with printing_secret(remedy) if secrets else contextlib.nullcontext():
            print_banner(settings, secrets or {}, demo=demo, addresses=addresses, has_keys=secrets is not None)
        if is_second:
            click.echo(
                "Another service, console or command is using this data directory."
                " It shares all animals, keys and limits with this service.",
                err=True,
            )

    context = click.get_current_context()

    def reread() -> Settings:
        with context.scope(cleanup=False):  # in the thread that calls this
            return settings_from(options)

    service.serve(settings, reread, greet)


def _prepare_data(settings: Settings) -> None:
    prepare(settings)
    if found := data_dir.readable_by_others(settings.data):
        names = ", ".join(str(path) for path in found[:3]) + (" …" if len(found) > 3 else "")
        hint = f"chmod -R go= {shlex.quote(str(settings.data))}"
        event(logging.WARNING, "data readable by others", paths=names, hint=hint)
    recover_gate(settings, thoroughly=True)


async def _check_urls(settings: Settings) -> None:
    """Raises OperatorError if a URL is invalid or a package is missing. Called before any file is created."""
    if settings.gate is not None:
        await open_gate_for(without_fallback(settings)).close()
    if settings.store is not None:
        await close_stores(open_stores_for(settings, None).values())


async def _first_key(settings: Settings, *, create: bool) -> dict[Environment, str] | None:
    """If there are no keys yet, creates a key on the free plan and returns its secret.

    Returns an empty dictionary if keys already exist, and None if there are no keys and `create` is false.
    """
    async with Backends(settings, bounds=OPERATOR_BOUNDS) as backends:
        for store in backends.stores.values():
            if await store.keys.page(limit=1):
                return {}
        if not create:
            return None
        by, secret = Actor("petstore serve", time.time()), mint("live")
        key = new_key("live", "free", now=by.at, name="first key")
        # If several nodes start at the same time, only one of them adds the key.
        is_added = await backends.stores["live"].keys.create_first(key, secret, by)
        return {"live": secret} if is_added else {}


async def _demo_keys(settings: Settings) -> dict[Environment, str]:
    """Creates the demo data and returns a secret for each environment. If the demo data already exists, returns {}.

    Raises Unavailable if the store does not respond. Raises OperatorError if there is other data, for example
    because an earlier start was interrupted.
    """
    if settings.store is not None:
        raise OperatorError("--demo cannot be combined with --store")
    async with Backends(settings, bounds=OPERATOR_BOUNDS) as backends:
        if not await _can_be_filled(backends, settings.data):
            return {}
    async with Backends(settings, alone=True, bounds=OPERATOR_BOUNDS) as backends:
        if not await _can_be_filled(backends, settings.data):  # another process has just created the data
            return {}
        return await demo_data.fill(backends.stores, backends.gate, time.time())


async def _can_be_filled(backends: Backends, data: Path) -> bool:
    """Returns True if both environments are empty, and False if both already contain the demo data.

    Raises OperatorError if an environment contains other data.
    """
    stores = backends.stores.values()
    if not any([await demo_data.has_data(store) for store in stores]):
        return True
    if not all([await demo_data.is_demo(store) for store in stores]):
        raise OperatorError(f"--demo: {data} contains other data; use another --data directory, or omit --demo")
    return False
