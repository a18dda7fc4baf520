"""What `petstore serve` prints when it starts: addresses, new keys, and commands that work where they are printed."""

import ipaddress
import shlex
import sys
from collections.abc import Mapping, Sequence

import click
from click.core import ParameterSource

from petstore.cli.options import BACKEND_OPTIONS
from petstore.cli.output import program
from petstore.keys import Environment
from petstore.server.sockets import Address
from petstore.settings import BASES, Settings, without_password


def print_banner(
    settings: Settings, secrets: Mapping[Environment, str], *, demo: bool, addresses: Sequence[Address] = ()
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
    if secrets:
        _print_secrets(secrets, curl, origin, demo=demo)
    _print_commands(first_start=bool(secrets) and not demo)
    sys.stdout.flush()


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
    commands = [(f"{program()} {words}{given_options()}", about) for words, about in lines]
    width = max(len(command) for command, _ in commands)
    click.echo("\nIn another terminal:\n")
    for command, about in commands:
        click.echo(f"  {command:<{width}}  {about}")
    click.echo()


def given_options() -> str:
    """The options that choose the data: other commands need them too, and another terminal lacks our variables."""
    context = click.get_current_context()
    words = ""
    for name in BACKEND_OPTIONS:
        is_given = context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
        if is_given and context.params[name]:
            value = str(context.params[name])
            shown = without_password(value) if name in ("store", "gate") else value
            words += f" --{name.replace('_', '-')}" + ("" if name == "pgbouncer" else f" {shlex.quote(shown)}")
    return words


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
