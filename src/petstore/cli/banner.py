"""Prints the startup banner of `petstore serve`: the service's addresses, any new keys, and useful commands."""

import sys
from collections.abc import Mapping, Sequence

import click

from petstore.cli.addresses import ServiceAddress, origin, service_address
from petstore.cli.suggestions import as_typed, suggestion
from petstore.keys import Environment
from petstore.server.sockets import Address
from petstore.settings import BASES, Settings, without_password


def print_banner(
    settings: Settings,
    secrets: Mapping[Environment, str],
    *,
    demo: bool,
    addresses: Sequence[Address] = (),
    has_keys: bool = True,
) -> None:
    """Prints the banner and the `secrets`, which are shown only once. `addresses` are the sockets passed by systemd."""
    listening = [*addresses] or [(settings.host, settings.port)]
    address = service_address(settings, listening)
    shown = settings.public_base or address.origin
    click.echo(f"Petstore listens on {', '.join(origin(settings, *each) for each in listening)}")
    click.echo(f"  live       {shown}{BASES['live']}")
    click.echo(f"  staging    {settings.base_url('staging') if settings.staging_url else shown + BASES['staging']}")
    click.echo(f"  reference  {shown}/docs")
    click.echo(f"  data       {shown_data(settings)}")
    if secrets:
        _print_secrets(secrets, address, demo=demo)
    if not has_keys:
        click.echo(as_typed("\nThere is no API key yet. Create one with `petstore keys create --plan free`."))
    _print_commands(first_start=bool(secrets) and not demo)
    sys.stdout.flush()


def shown_data(settings: Settings) -> str:
    """Returns the absolute path of the data directory, or the URLs of the servers."""
    if settings.store is None:
        return str(settings.data.absolute())
    return " and ".join(without_password(url) for url in (settings.store, settings.gate) if url)


def _print_secrets(secrets: Mapping[Environment, str], address: ServiceAddress, *, demo: bool) -> None:
    if demo:
        click.echo("\nThe example data consists of animals, keys on every plan, and a day of usage.")
        click.echo("Your API keys (free plan; they will not be shown again):\n")
    else:
        click.echo("\nYour first API key (free plan; it will not be shown again):\n")
    for environment, secret in sorted(secrets.items()):
        click.echo(f"  {environment:<9}{secret}" if demo else f"  {secret}")
    click.echo("\nTry it:\n")
    for environment, secret in sorted(secrets.items()):
        click.echo(f"  {address.curl_line(environment, secret)}")


def _print_commands(*, first_start: bool) -> None:
    commands = [
        (suggestion("console"), "manage keys and animals in a browser"),
        (suggestion("keys rotate ID"), "replace a lost secret (to find the ID, use keys list)"),
        (suggestion("keys create --plan pro"), "create another key"),
    ]
    if first_start:
        commands.append((suggestion("pets import FILE"), "add animals"))
    width = max(len(command) for command, _ in commands)
    click.echo("\nIn another terminal:\n")
    for command, about in commands:
        click.echo(f"  {command:<{width}}  {about}")
    click.echo()
