"""`petstore console`: starts the console, a web page for operators."""

import ipaddress
import sys
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import click

from petstore import service
from petstore.cli.addresses import CONSOLE_PORT, record_console, recorded_service, sign_in_url
from petstore.cli.banner import shown_data
from petstore.cli.data import creates_store, say_created
from petstore.cli.options import Command, backend_options, check_settings, setting_option, settings_from
from petstore.cli.suggestions import as_typed
from petstore.errors import OperatorError
from petstore.observability import logs
from petstore.server.sockets import check_port
from petstore.settings import Settings, check_base_url, is_base_url


@click.command(cls=Command, context_settings={"auto_envvar_prefix": "PETSTORE_CONSOLE"})
@backend_options
@setting_option("host")
@setting_option("port", default=CONSOLE_PORT)
@setting_option("public_url", help="The address that browsers use, if the console is behind a proxy.")
@click.option("--service-url", envvar="PETSTORE_PUBLIC_URL", metavar="URL",
              show_default="the address that the service last listened on",
              help="The service's address, for the link to the API reference.")  # fmt: skip
@setting_option("tls_cert")
@setting_option("tls_key")
@setting_option("trusted_proxies")
def console(service_url: str | None, **options: Any) -> None:
    """Start the console. To stop it, press Ctrl-C or send SIGTERM.

    The command prints a sign-in link that works once and expires after an hour. To let operators sign in at any time,
    and to see their names in the audit log, create a token for each operator with petstore operators add.

    \b
    Examples:
      petstore console
      petstore console --store postgresql://pets@db/pets --gate redis://gate
      ssh -L 8081:127.0.0.1:8081 server       run this on your own machine, then open the link there

    You can also set each option with an environment variable, such as PETSTORE_CONSOLE_PORT for --port.
    """
    settings = settings_from(options)
    logs.configure()
    _check(settings)
    service_url = service_url or recorded_service(settings.data).origin
    check_base_url("--service-url", service_url)
    service.check_console_packages()
    service.serve_console(settings, service_url, partial(_print_banner, settings, creates_store(settings)))


def _check(settings: Settings) -> None:
    """Raises OperatorError if a setting is invalid or insecure."""
    public = settings.public_base
    if public and not (is_base_url(public) and public == "{0.scheme}://{0.netloc}".format(urlsplit(public))):
        raise OperatorError(f"--public-url {public}: use an address like https://console.example.com, without a path")
    if not _is_loopback(settings.host) and not public.startswith("https://"):
        raise OperatorError(
            f"--host {settings.host} is accessible from other machines. Use --host 127.0.0.1 and ssh -L, or set"
            " --public-url https://… and enable HTTPS, either with --tls-cert and --tls-key or in a proxy"
        )
    check_settings(settings)
    check_port(settings.host, settings.port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _print_banner(settings: Settings, is_new: bool, address: str) -> None:
    if is_new:
        say_created(settings)
    record_console(settings.data, sign_in_url(settings))
    click.echo(
        f"The console shows {shown_data(settings)}. To sign in, open this one-time link within an hour:"
        f"\n\n  {address}\n"
    )
    click.echo(
        as_typed(
            "To create an operator's token, so that the audit log shows the operator's name, run"
            " `petstore operators add NAME`."
        )
    )
    sys.stdout.flush()
