"""The `petstore` command. Each group lives in a file of its own and is imported only when it is used."""

import asyncio
import contextlib
import getpass
import importlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click
import msgspec

from petstore import __version__
from petstore.audit import AuditEntry
from petstore.errors import OperatorError, PetstoreError
from petstore.pets import INT64_MAX, INT64_MIN
from petstore.settings import Settings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

NARROWEST = 80  # columns: on a narrower terminal a table is laid out for these, and the terminal breaks its lines
ID_MAX = 20  # characters: what is longer in a table is no id, and may be broken
WIDE = 100  # columns: below these, those of a table stand closer together

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
    "deploy-files": ("petstore.cli.deploy_files", "Write systemd units and proxy configurations to a directory."),
}


class LazyGroup(click.Group):
    """Keeps `petstore --help` fast: a command's module is imported when the command is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[name][0]), name.replace("-", "_"))
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


class Int64(click.ParamType[int]):
    """A whole number of 64 bits. The help shows the bounds of an IntRange, which break in the middle of a number."""

    name = "integer"

    def __init__(self, least: int = INT64_MIN) -> None:
        self._range = click.IntRange(least, INT64_MAX)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return self._range.convert(value, param, ctx)


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
    return f"{os.environ.get('SUDO_USER') or _user()} (command line)"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container a user may have no name
        return f"uid {os.getuid()}"


def entry(action: str, subject: str, detail: str = "") -> AuditEntry:
    """What the audit log will say about this command."""
    return AuditEntry(time.time(), actor(), action, subject, detail)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def print_as_utf8() -> None:
    """Data for programs are UTF-8, whatever the terminal's encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


def print_json(value: Any) -> None:
    print_as_utf8()
    click.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


# Controls, ends of lines, marks of direction, and what is no character at all.
_obeyed = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """A name may hold what a terminal takes for a command."""
    return _obeyed.sub("\N{REPLACEMENT CHARACTER}", text)


def print_table(columns: list[str], rows: list[list[str]], empty: str, whole: Sequence[str] = ()) -> None:
    """In the first column and in those named in `whole` an id is never broken: other commands ask for it."""
    if not rows:
        click.echo(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # On a pipe nothing is broken: a script wants whole lines.
    width = max(Console().width, NARROWEST) if sys.stdout.isatty() else 10_000
    table = Table(box=None, padding=(0, 1 if width < WIDE else 2, 0, 0), pad_edge=False, header_style="bold")
    cells = [[Text(printable(cell)) for cell in row] for row in rows]
    for number, name in enumerate(columns):
        widest = max(row[number].cell_len for row in cells) if number == 0 or name in whole else 0
        table.add_column(name, overflow="fold", no_wrap=0 < widest <= ID_MAX, min_width=min(widest, ID_MAX))
    for row in cells:
        table.add_row(*row)
    Console(width=width).print(table, crop=False)


def print_more(option: str) -> None:
    """Where the list goes on: on standard error, so that a script's data stays data."""
    click.echo(f"There is more: add {option} to the same command.", err=True)


def print_fields(fields: dict[str, str]) -> None:
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        click.echo(f"{name:<{width}}  {printable(value)}")


@contextlib.contextmanager
def shown_once(remedy: str) -> Iterator[None]:
    """Around the printing of a secret: if it cannot be printed, it is lost. Raises OperatorError."""
    if getattr(sys.stdout, "name", "") == os.devnull:  # as _prepare_streams has made it
        raise OperatorError(f"standard output is closed; the secret is lost: {remedy}")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        raise OperatorError(f"standard output: {error.strerror}; the secret is lost: {remedy}") from error


def progress(label: str, length: int) -> contextlib.AbstractContextManager[Any]:
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
    _prepare_streams()
    try:
        outcome = cli(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(outcome if isinstance(outcome, int) else 0)  # the code of an Exit comes back as a value
    except click.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        _end(2, error.format_message())
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        _fail(" ".join(error.format_message().split()) + hint)
    except click.ClickException as error:
        _fail(error.format_message())
    except PetstoreError as error:
        _fail(str(error))
    except UnicodeEncodeError as error:
        _fail(f"{error.object!r}: not valid UTF-8")
    except BrokenPipeError:
        _end(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(where + (error.strerror or repr(error)))


def _prepare_streams() -> None:
    """A closed stream swallows what it is told; one that is not UTF-8 shows characters that it lacks by number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _nowhere())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def _fail(message: str) -> None:
    _end(2, f"petstore: {message}")


def _end(code: int, message: str = "") -> None:
    try:
        sys.stdout.flush()
    except OSError:  # it would be tried once more at the very end, with a trace
        sys.stdout = _nowhere()
    with contextlib.suppress(OSError):
        click.echo(message, err=True, nl=bool(message))
    sys.exit(code)
