"""Options and parameter types that several commands have."""

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from petstore.admin.durations import parse_duration
from petstore.data_dir import os_errors_of
from petstore.errors import OperatorError
from petstore.keys import ENVIRONMENTS
from petstore.pets import INT64_MAX, INT64_MIN
from petstore.server.tls import tls_context
from petstore.settings import Settings, check_url

F = TypeVar("F", bound=Callable[..., Any])

URL_FILE_MAX = 64 * 1024  # bytes
BACKEND_OPTIONS = ("data", "store", "store_file", "gate", "gate_file", "pgbouncer", "clock_file")


class Command(click.Command):
    """A command whose help page has the backend options, which all commands share, at its end."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        for title, is_backend in (("Options", False), ("Backend options", True)):
            shown = [option for option in options if (option.name in BACKEND_OPTIONS) == is_backend]
            if records := [record for option in shown if (record := option.get_help_record(ctx))]:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(click.Group):
    command_class = Command


class Int64(click.ParamType[int]):
    """A whole number of 64 bits. Unlike click.IntRange it keeps its bounds out of the help page."""

    name = "integer"

    def __init__(self, least: int = INT64_MIN) -> None:
        self._range = click.IntRange(least, INT64_MAX)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return self._range.convert(value, param, ctx)


class Duration(click.ParamType[float]):
    """A number with a unit, as seconds; with `never`, also that word, as infinity."""

    name = "duration"

    def __init__(self, least: float = 0.0, *, never: bool = False) -> None:
        self._least = least
        self._never = never

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if self._never and value == "never":
            return math.inf
        try:
            return parse_duration(value, least=self._least)
        except OperatorError as error:
            self.fail(str(error), param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def backend_options(command: F) -> F:
    """--data, --store, --gate and their variants: the data that a command acts on. See `settings_from`."""
    for option in (
        click.option("--clock-file", envvar="PETSTORE_CLOCK_FILE", type=click.Path(path_type=Path, dir_okay=False),
                     hidden=True, help="For tests: a file with seconds to add to the clock."),
        click.option("--pgbouncer", envvar="PETSTORE_PGBOUNCER", is_flag=True,
                     help="PostgreSQL is behind PgBouncer in transaction mode."),
        click.option("--gate-file", envvar="PETSTORE_GATE_FILE", metavar="FILE", type=click.Path(path_type=Path),
                     help="A file that has the URL of the gate: keeps its password out of the process list."),
        click.option("--gate", envvar="PETSTORE_GATE", metavar="URL",
                     help="The gate: redis://…, or rediss, valkey, valkeys, redis+sentinel, redis+cluster."
                          " [default: the file in DIR]"),
        click.option("--store-file", envvar="PETSTORE_STORE_FILE", metavar="FILE", type=click.Path(path_type=Path),
                     help="A file that has the URL of the store."),
        click.option("--store", envvar="PETSTORE_STORE", metavar="URL",
                     help="The store: postgresql://… [default: the files in DIR]"),
        click.option("--data", envvar="PETSTORE_DATA", metavar="DIR", type=click.Path(path_type=Path),
                     default=Settings().data, show_default=True, help="The data directory."),
    ):  # fmt: skip
        command = option(command)
    return command


def data_options(command: F) -> F:
    """The options of every command that prints data: the backend options, and --json."""
    return backend_options(json_option(command))


def settings_from(options: Mapping[str, Any]) -> Settings:
    """The settings of a command's options. Reads --store-file and --gate-file. Raises OperatorError."""
    settings = dict(options)
    for name in ("store", "gate"):
        file: Path | None = settings.pop(f"{name}_file")
        if file is not None and _overrides(f"{name}_file", name, settings[name]):
            settings[name] = _url_in(file, f"--{name}-file {file}")
        if settings[name] is not None:
            check_url(f"--{name}", settings[name])
    return Settings(**settings)


def check_settings(settings: Settings) -> None:
    """The rules of the settings, and the certificate that they name. Raises OperatorError."""
    settings.check()
    tls_context(settings.tls_cert, settings.tls_key)


def _overrides(file_option: str, url_option: str, url: str | None) -> bool:
    """Whether the file counts and not the URL: an option of the command line wins over a variable."""
    if url is None:
        return True
    context = click.get_current_context()
    sources = [context.get_parameter_source(option) for option in (file_option, url_option)]
    if sources[0] == sources[1]:
        raise OperatorError(f"give --{url_option} or --{url_option}-file, not both")
    return sources[0] == ParameterSource.COMMANDLINE


def _url_in(file: Path, subject: str) -> str:
    """The only line of a file. No message repeats it: it may contain a password."""
    with os_errors_of(subject):
        try:
            with file.open("rb") as source:  # of a wrong name, /dev/zero say, no more is read
                lines = source.read(URL_FILE_MAX).decode().split("\n")
        except UnicodeDecodeError:
            raise OperatorError(f"{subject}: is not UTF-8") from None
    if not lines[0].strip() or any(line.strip() for line in lines[1:]):
        raise OperatorError(f"{subject}: must have one line, the URL")
    return lines[0].strip()


def limit_option(default: int, most: int = 10_000) -> Callable[[F], F]:
    return click.option("--limit", type=click.IntRange(1, most), default=default, show_default=True, metavar="N",
                        help="How many at most.")  # fmt: skip


def confirm(question: str, yes: bool, *listed: str) -> None:
    """Ask, unless --yes was given. `listed`: lines that a terminal shows before the question.

    Raises OperatorError for every answer but yes, also when there is no answer.
    """
    if yes:
        return
    if sys.stdin is not None and sys.stdin.isatty():
        for line in listed:
            click.echo(line, err=True)
        try:
            confirmed, question = click.confirm(question, err=True), ""
        except click.Abort:  # Ctrl-C or Ctrl-D
            click.echo(err=True)
            confirmed, question = False, ""
    else:  # the question is a part of the message, which is one line
        confirmed = sys.stdin is not None and sys.stdin.readline().strip().lower() in ("y", "yes")
        question += " "
    if not confirmed:
        raise OperatorError(f"{question}not confirmed, so nothing was changed; --yes answers yes")


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
env_option = click.option("--env", "environment", type=click.Choice(ENVIRONMENTS), default="live", show_default=True,
                          help="The environment.")  # fmt: skip
