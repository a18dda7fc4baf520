"""`petstore serve`: the service itself."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import re
import resource
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from petstore import service
from petstore.audit import AuditEntry
from petstore.cli import common_options, run, shown_once
from petstore.errors import OperatorError, PetstoreError, Unavailable
from petstore.keys import LIMIT_MAX, digest_of, mint, new_key
from petstore.observability import logs
from petstore.observability.logs import event
from petstore.server.tls import tls_context
from petstore.settings import Settings
from petstore.store.schema import COUNTERS
from petstore.web.app import BASES

TOLD_AFTER = 3.0  # seconds that the store may take to open without a word

_default = Settings()
_file = click.Path(path_type=Path, dir_okay=False)


def _as_sent(_: click.Context, __: click.Parameter, origins: tuple[str, ...]) -> tuple[str, ...]:
    """As browsers write origins: in small letters, and without the port that is the usual one."""
    return tuple(re.sub("^(http://.+):80$|^(https://.+):443$", r"\1\2", origin.lower()) for origin in origins)


@click.command(context_settings={"auto_envvar_prefix": "PETSTORE"})
@common_options
@click.option("--host", default=_default.host, show_default=True, help="The address to listen on.")
@click.option("--port", default=_default.port, show_default=True, type=click.IntRange(1, 65535),
              help="The port to listen on.")  # fmt: skip
@click.option("--workers", default=_default.workers, show_default=True, type=click.IntRange(1, 256), help="Processes.")
@click.option("--public-url", metavar="URL", help="The address that clients see, for absolute links.")
@click.option("--tls-cert", type=_file, metavar="FILE", help="Certificate chain (PEM): serve HTTPS.")
@click.option("--tls-key", type=_file, metavar="FILE", help="Its private key (PEM).")
@click.option("--access-log", is_flag=True, help="Log every request.")
@click.option("--cors-origin", "cors_origins", multiple=True, metavar="ORIGIN", callback=_as_sent,
              help="Allow a web origin; repeatable.")  # fmt: skip
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="NETWORK",
    help="Believe its X-Forwarded-For; repeatable.",
)
@click.option("--metrics-from", multiple=True, metavar="NETWORK",
              help="Who else than this machine may read /metrics; repeatable.")  # fmt: skip
@click.option("--ietf-headers", is_flag=True, help="Also send the IETF draft's RateLimit and RateLimit-Policy.")
@click.option(
    "--address-per-minute", default=_default.address_per_minute, show_default=True, type=click.IntRange(1, LIMIT_MAX),
    help="Requests without a valid key, per client address.",
)  # fmt: skip
@click.option("--ban-seconds", default=_default.ban_seconds, show_default=True, type=click.IntRange(1, 10**9),
              help="Length of a key's first ban; each further one doubles.")  # fmt: skip
@click.option("--ban-ceiling", default=_default.ban_ceiling, show_default=True, type=click.IntRange(1, 10**9),
              help="The longest ban, in seconds.")  # fmt: skip
@click.option("--ban-strikes", default=_default.ban_strikes, show_default="the key's limit per minute",
              type=click.IntRange(0, LIMIT_MAX), help="Refused requests in one window before a ban.")  # fmt: skip
@click.option("--gate-outage", default=_default.gate_outage, show_default=True,
              type=click.Choice(["degrade", "refuse"]),
              help="While Redis is away: go on with limits per node, or answer 503.")  # fmt: skip
@click.option("--postgres-pool", default=_default.postgres_pool, show_default=True, type=click.IntRange(1, 1000),
              help="Connections to PostgreSQL, per worker.")  # fmt: skip
@click.option("--clock-file", type=_file, metavar="FILE", help="For tests: a file with seconds to add to the clock.")
def serve(**options: Any) -> None:
    """Start the service and run until Ctrl-C or SIGTERM.

    \b
    Examples:
      petstore serve
      petstore serve --host 0.0.0.0 --port 80 --workers 4 --public-url https://api.example.com
      petstore serve --tls-cert fullchain.pem --tls-key key.pem --port 443

    Every option can also be set as a variable: PETSTORE_PORT, PETSTORE_WORKERS, and so on.
    """
    settings = Settings(**options)
    logs.configure()
    check_settings(settings)
    check_port(settings)
    service.prepare(settings)
    service.recover_gate(settings, thoroughly=True)
    first_key = run(_first_key(settings))
    _allow_many_connections()
    with shown_once("petstore keys rotate makes a new one") if first_key else contextlib.nullcontext():
        _greet(settings, first_key)
    service.serve(settings)


def asgi() -> service.AsgiService:
    """The service for another ASGI server, set up by PETSTORE_* variables: uvicorn --factory petstore.cli.serve:asgi"""
    settings = Settings(**serve.make_context("petstore", []).params)
    logs.configure()
    try:
        check_settings(settings)
        service.prepare(settings)
        service.recover_gate(settings, thoroughly=True)
        with ThreadPoolExecutor(1) as elsewhere:  # the server's event loop may run in this thread already
            elsewhere.submit(lambda: run(_look_at_stores(settings))).result()
    except PetstoreError as error:
        raise SystemExit(f"petstore: {error}") from None
    return service.AsgiService(settings)


def check_settings(settings: Settings) -> None:
    """Whatever would fail later in a worker fails here in one line. Raises OperatorError."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise OperatorError("--tls-cert and --tls-key go together")
    tls_context(settings.tls_cert, settings.tls_key)
    if settings.ban_seconds > settings.ban_ceiling:
        raise OperatorError("--ban-seconds may not be more than --ban-ceiling")
    for origin in settings.cors_origins:
        if origin != "*" and not (origin.isascii() and re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", origin)):
            raise OperatorError(f"--cors-origin {origin}: give an origin like https://shop.example.com")
    if settings.public_url is not None:
        if not settings.public_url.isascii():
            raise OperatorError(f"--public-url {settings.public_url}: write it in ASCII, as xn--… and %…")
        if not _is_base(settings.public_url):
            raise OperatorError(f"--public-url {settings.public_url}: give an address like https://api.example.com")
    named = [("--trusted-proxy", network) for network in settings.trusted_proxies]
    for option, network in [*named, *(("--metrics-from", network) for network in settings.metrics_from)]:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise OperatorError(f"{option} {network}: give an address or a network like 10.0.0.0/8") from None


def _is_base(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and not (parts.query or parts.fragment)


def check_port(settings: Settings) -> None:
    # Workers share the port with SO_REUSEPORT: a second service would start without a word and take half the traffic.
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (socket.gaierror, UnicodeError):
        raise OperatorError(f"--host {settings.host}: no such address") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OperatorError(
                f"port {settings.port} on {settings.host} is in use; stop what runs there or choose another --port"
            ) from None
        raise OperatorError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}") from None


async def _look_at_stores(settings: Settings) -> None:
    """Raises OperatorError. A store that is away will do: it may be back soon."""
    with contextlib.suppress(Unavailable):
        async with service.Backends(settings) as backends:
            await _opened(backends)


async def _opened(backends: service.Backends) -> None:
    """Waits until the schema is up to date, however long that takes: a store that is closed meanwhile begins anew.

    Raises OperatorError, also for half a copy, and Unavailable.
    """
    told = asyncio.get_running_loop().call_later(TOLD_AFTER, _tell_of_opening)
    try:
        for store in backends.stores.values():
            await store.rows(COUNTERS, None, 1)  # with the patience of a copy, not with a request's
            unfinished = await store.copying_from()
            if unfinished is not None:
                raise OperatorError(f"the copy of {unfinished} to this store is not finished: run petstore copy again")
    finally:
        told.cancel()


def _tell_of_opening() -> None:
    event(logging.INFO, "store opening", hint="the schema is brought up to date; the service starts when it is")


async def _first_key(settings: Settings) -> str | None:
    """On an empty data folder: one free key, so that the first request can be made at once."""
    async with service.Backends(settings) as backends:
        await _opened(backends)
        for store in backends.stores.values():
            if await store.keys(limit=1):
                return None
        key = new_key("live", "free", now=time.time(), name="first key")
        secret = mint("live")
        done = AuditEntry(time.time(), "petstore serve", "create key", key.id, "the first start")
        # Of nodes that start at once one adds it, and the others find it.
        added = await backends.stores["live"].add_key(key, digest_of(secret), done, only_first=True)
        return secret if added else None


def _allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))


def _greet(settings: Settings, first_key: str | None) -> None:
    scheme = "https" if settings.tls_cert else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    origin = f"{scheme}://{host}:{settings.port}"
    shown = settings.public_base or origin
    click.echo(f"Petstore listens on {origin}")
    click.echo(f"  live       {shown}{BASES['live']}")
    click.echo(f"  staging    {shown}{BASES['staging']}")
    click.echo(f"  reference  {shown}/docs")
    if first_key:
        click.echo("\nYour first API key (free plan; it is not shown again):\n")
        click.echo(f"  {first_key}\n")
        click.echo("Try it:\n")
        click.echo(f"  curl -i {origin}{BASES['live']}/pets -H 'Authorization: Bearer {first_key}'\n")
        click.echo("Next: petstore keys --help, petstore pets import --help, and the reference above.")
    sys.stdout.flush()
