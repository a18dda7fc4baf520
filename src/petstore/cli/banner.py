"""What `petstore serve` prints when it starts: addresses, new keys, and commands that work where they are printed."""

import ipaddress
import shlex
import sys
from collections.abc import Mapping, Sequence

import click

from petstore.cli.options import suggestion
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
    """`secrets` are those of new keys, which are never shown again. `addresses`: where systemd listens for us."""
    listening = [*addresses] or [(settings.host, settings.port)]
    host, port = next((each for each in listening if each[1] is not None), listening[0])
    if port is None:  # behind a Unix socket any host will do
        origin, curl = "http://localhost", f"curl -i --unix-socket {shlex.quote(host.removeprefix('unix:'))}"
    else:  # the certificate is for the name that clients use, not for this address
        origin, curl = _origin(settings, _reachable(host), port), "curl -ik" if settings.tls_cert else "curl -i"
    shown = settings.public_base or origin
    click.echo(f"Petstore listens on {', '.join(_origin(settings, *each) for each in listening)}")
    click.echo(f"  live       {shown}{BASES['live']}")
    click.echo(f"  staging    {settings.base_url('staging') if settings.staging_url else shown + BASES['staging']}")
    click.echo(f"  reference  {shown}/docs")
    click.echo(f"  data       {shown_data(settings)}")
    if secrets:
        _print_secrets(secrets, curl, origin, demo=demo)
    if not has_keys:
        click.echo(f"\nThere is no API key yet. Create one with `{suggestion('keys create --plan free')}`.")
    _print_commands(first_start=bool(secrets) and not demo)
    sys.stdout.flush()


def shown_data(settings: Settings) -> str:
    """Where the data is: the absolute path of the directory, or the servers."""
    if settings.store is None:
        return str(settings.data.absolute())
    return " and ".join(without_password(url) for url in (settings.store, settings.gate) if url)


def _print_secrets(secrets: Mapping[Environment, str], curl: str, origin: str, *, demo: bool) -> None:
    if demo:
        click.echo("\nThese are example data: animals, keys of every plan and a day of usage.")
        click.echo("Your API keys (free plan; they are not shown again):\n")
    else:
        click.echo("\nYour first API key (free plan; it is not shown again):\n")
    for environment, secret in sorted(secrets.items()):
        click.echo(f"  {environment:<9}{secret}" if demo else f"  {secret}")
    click.echo("\nTry it:\n")
    for environment, secret in sorted(secrets.items()):
        url = shlex.quote(f"{origin}{BASES[environment]}/pets")
        click.echo(f"  {curl} {url} -H 'Authorization: Bearer {secret}'")


def _print_commands(*, first_start: bool) -> None:
    lines = [
        ("console", "keys, animals and charts in a browser"),
        ("keys rotate ID", "a new secret for a lost one; keys list shows the ids"),
        ("keys create --plan pro", "another key"),
    ]
    if first_start:
        lines.append(("pets import FILE", "add animals"))
    commands = [(suggestion(words), about) for words, about in lines]
    width = max(len(command) for command, _ in commands)
    click.echo("\nIn another terminal:\n")
    for command, about in commands:
        click.echo(f"  {command:<{width}}  {about}")
    click.echo()


def _reachable(host: str) -> str:
    """A host by which this machine reaches the service, also when it listens on all interfaces."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "localhost"


def _origin(settings: Settings, host: str, port: int | None) -> str:
    if port is None:
        return host
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
