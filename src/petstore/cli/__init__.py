"""The `petstore` command. Each group lives in a file of its own and is imported only when it is used."""

import asyncio
import getpass
import importlib
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from petstore import __version__
from petstore.errors import PetstoreError
from petstore.ledger import Deed
from petstore.settings import Settings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

COMMANDS = {
    "serve": ("petstore.cli.serve", "Start the service."),
    "keys": ("petstore.cli.keys", "Issue, list, show, rotate and revoke API keys; set their limits."),
    "pets": ("petstore.cli.pets", "List, add, import and export animals; change a status."),
    "bans": ("petstore.cli.bans", "List and lift temporary bans."),
    "usage": ("petstore.cli.usage", "Show what keys use, with a line of bars for each."),
    "audit": ("petstore.cli.audit", "Show who did what, and when."),
    "operators": ("petstore.cli.operators", "Name those who may sign in to the console."),
    "console": ("petstore.cli.console", "Start the operator's console, a web page for all of this."),
    "backup": ("petstore.cli.backup", "Write all data to one file while the service runs."),
    "restore": ("petstore.cli.backup", "Bring a backup back."),
    "copy": ("petstore.cli.copy", "Copy everything to other backends: to a cluster, or back."),
    "check": ("petstore.cli.check", "Check data, settings, free space and clock."),
}


class LazyGroup(click.Group):
    """Keeps `petstore --help` fast: a command's module is imported when the command is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[name][0]), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="petstore", prog_name="petstore")
def cli() -> None:
    """Petstore: an HTTP and JSON pet store service.

    \b
    First steps:
      petstore serve                          start on 127.0.0.1:8080; the first start prints a key
      petstore keys create --plan pro         issue another key
      petstore pets import animals.jsonl      fill the catalogue

    Which data a command acts on is set by --data, --store and --gate, or by PETSTORE_DATA, PETSTORE_STORE and
    PETSTORE_GATE. A service that runs on that data obeys from the next request on.
    """


def common_options(command: F) -> F:
    """--data, --store, --gate and --pgbouncer: which data a command acts on, and how it is reached."""
    for option in (
        click.option("--pgbouncer", envvar="PETSTORE_PGBOUNCER", is_flag=True,
                     help="PostgreSQL is behind PgBouncer in transaction mode."),
        click.option("--gate", envvar="PETSTORE_GATE", metavar="URL",
                     help="The gate: redis://…, or rediss, valkey, valkeys, redis+sentinel, redis+cluster."
                          " [default: the file in DIR]"),
        click.option("--store", envvar="PETSTORE_STORE", metavar="URL",
                     help="The store: postgresql://… [default: the files in DIR]"),
        click.option(
            "--data", envvar="PETSTORE_DATA", metavar="DIR", type=click.Path(path_type=Path),
            default=Settings().data, show_default=True, help="The data folder.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


env_option = click.option(
    "--env", "environment", type=click.Choice(["live", "staging"]), default="live", show_default=True,
    help="The environment.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def actor() -> str:
    """Who the audit log will say did it. Through sudo, it is the person who counts."""
    return f"{os.environ.get('SUDO_USER') or getpass.getuser()} (command line)"


def deed(action: str, subject: str, detail: str = "") -> Deed:
    """What the audit log will say about this command."""
    return Deed(time.time(), actor(), action, subject, detail)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def print_table(columns: list[str], rows: list[list[str]], empty: str) -> None:
    if not rows:
        click.echo(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # On a pipe nothing is cut: a script wants whole values.
    console = Console() if sys.stdout.isatty() else Console(width=10_000)
    console.print(table, crop=False)


def print_more(option: str) -> None:
    """Where the list goes on: on standard error, so that a script's data stays data."""
    click.echo(f"There is more: add {option} to the same command.", err=True)


def print_fields(fields: dict[str, str]) -> None:
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        click.echo(f"{name:<{width}}  {value}")


def progress(label: str, length: int) -> AbstractContextManager[Any]:
    """A bar on a terminal; silence in a script."""
    return click.progressbar(
        length=length,
        label=label,
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
        update_min_steps=max(1, length // 200),
    )


def when(at: float | None) -> str:
    return "never" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def main() -> None:
    """One clear line and exit code 2 for whatever the operator can mend."""
    try:
        outcome = cli(standalone_mode=False)
        sys.exit(outcome if isinstance(outcome, int) else 0)  # the code of an Exit comes back as a value
    except click.Abort:
        sys.exit(130)
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        _fail(" ".join(error.format_message().split()) + hint)
    except click.ClickException as error:
        _fail(error.format_message())
    except PetstoreError as error:
        _fail(str(error))
    except BrokenPipeError:
        sys.exit(0)


def _fail(message: str) -> None:
    click.echo(f"petstore: {message}", err=True)
    sys.exit(2)
