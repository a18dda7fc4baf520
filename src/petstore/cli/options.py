"""Options and parameter types shared by several commands."""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from petstore.cli.suggestions import BACKEND_OPTIONS, as_typed
from petstore.errors import OperatorError, PetstoreError
from petstore.files import os_errors_of
from petstore.keys import ENVIRONMENTS, parse_duration
from petstore.pets import INT64_MAX, INT64_MIN
from petstore.server.tls import tls_context
from petstore.settings import DECLARED, DEFAULTS, Option, Settings, check_url
from petstore.usage import calendar_month
from petstore.wording import parse_time

F = TypeVar("F", bound=Callable[..., Any])

URL_FILE_MAX = 64 * 1024  # bytes


class Command(click.Command):
    """A command whose help page refers to another page for some of its options.

    Completes the commands suggested by error messages, so that operators can run them exactly as printed.
    """

    elsewhere: Collection[str] = BACKEND_OPTIONS
    title = "Backend options"
    pointer = ("--data, --store, --gate", "The data to use. See petstore help backends.")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PetstoreError as error:
            error.args = (as_typed(str(error)),)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        own = [option for option in options if option.name not in self.elsewhere]
        with formatter.section("Options"):
            formatter.write_dl([record for option in own if (record := option.get_help_record(ctx))])
        if len(own) < len(options):
            with formatter.section(self.title):
                formatter.write_dl([self.pointer])


class Group(click.Group):
    command_class = Command


class WholeNumber(click.ParamType[int]):
    """A whole number from `least` to `most`. Error messages state the range, and the help page does not."""

    name = "n"

    def __init__(self, least: int = INT64_MIN, most: int = INT64_MAX) -> None:
        self._range = click.IntRange(least, most)
        if most < INT64_MAX:
            self._in_words = f"a whole number from {least:,} to {most:,}"
        else:
            self._in_words = "a 64-bit whole number" + (f" of at least {least}" if least > INT64_MIN else "")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return self._range.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not {self._in_words}.", param, ctx)


class Month(click.ParamType[str]):
    """A calendar month in the format that `calendar_month` parses."""

    name = "month"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            calendar_month(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Time(click.ParamType[float]):
    """A time in UTC, converted to Unix seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else parse_time(value)
        except ValueError:
            self.fail(f"{value!r} is not a time; write it like 2026-11-18 or 2026-11-18T14:00:00Z.", param, ctx)


class Duration(click.ParamType[float]):
    """A duration such as 90d, converted to seconds. If `never` is true, "never" is converted to infinity."""

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


def setting_option(name: str, **changes: Any) -> Callable[[F], F]:
    """Adds the option that `Settings` declares for a setting. `changes` replaces arguments of `click.option`."""
    kind, declared = DECLARED[name]
    is_list = get_origin(kind) is tuple
    arguments = {
        "help": declared.help + (" Repeatable." if is_list else ""),
        "type": _parameter_type(kind, declared),
        "is_flag": kind is bool,
        "multiple": is_list,
        "default": getattr(DEFAULTS, name),
        "show_default": declared.default or True,
        "metavar": declared.metavar,
        "envvar": f"PETSTORE_{name}".upper() if declared.selects_data else None,
        "hidden": declared.hidden,
    }
    option = click.option(declared.name or f"--{name.replace('_', '-')}", name, **(arguments | changes))
    if not declared.in_file:
        return option
    file = click.option(
        f"--{name}-file", envvar=f"PETSTORE_{name}_FILE".upper(), metavar="FILE", type=click.Path(path_type=Path),
        help=f"Read the {name}'s URL from this file, to keep the password out of the process list.",
    )  # fmt: skip
    return lambda command: option(file(command))


def _parameter_type(kind: Any, declared: Option) -> click.ParamType[Any] | None:
    if kind is int:
        return WholeNumber(declared.least, declared.most)
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if Path in (kind, *get_args(kind)):
        is_directory = declared.metavar == "DIR"  # data_dir.py says who may read it
        return click.Path(path_type=Path, dir_okay=is_directory, readable=not is_directory)
    return None


def setting_options(command: F, names: Iterable[str] = DECLARED) -> F:
    """Adds the options for these settings."""
    for name in reversed([*names]):
        command = setting_option(name)(command)
    return command


def backend_options(command: F) -> F:
    """Adds the options that select the data, such as --data, --store and --gate. See `settings_from`."""
    return setting_options(command, [name for name, (_, declared) in DECLARED.items() if declared.selects_data])


def data_options(command: F) -> F:
    """Adds the backend options and --json to a command that prints data."""
    return backend_options(json_option(command))


def settings_from(options: Mapping[str, Any]) -> Settings:
    """Returns the settings specified by a command's options. Reads the files given with --store-file and --gate-file.

    Raises OperatorError if a URL or a file is invalid, or if options conflict.
    """
    settings = dict(options)
    for name in ("store", "gate"):
        settings[name] = url_of(name, settings[name], settings.pop(f"{name}_file"))
        if settings[name] is not None:
            check_url(f"--{name}", settings[name])
    return Settings(**settings)


def url_of(name: str, url: str | None, file: Path | None) -> str | None:
    """Returns the URL given with an option such as --store, or the URL in the file given with --store-file.

    Raises OperatorError if the options conflict or the file is invalid.
    """
    if file is None or not _overrides(name, url):
        return url
    return _url_in(file, f"--{name.replace('_', '-')}-file {file}")


def check_settings(settings: Settings) -> None:
    """Checks the settings and the TLS certificate. Raises OperatorError if they are invalid."""
    settings.check()
    tls_context(settings.tls_cert, settings.tls_key)


def check_parent(file: Path) -> None:
    """Raises OperatorError if the directory for a new file does not exist.

    Ignores other errors, because they will be reported when the file is created.
    """
    try:
        file.parent.stat()
    except FileNotFoundError:
        raise OperatorError(f"{file.parent}: no such directory; create it first") from None
    except OSError:
        pass


def _overrides(name: str, url: str | None) -> bool:
    """Returns whether the file overrides the URL. A command-line option overrides an environment variable."""
    if url is None:
        return True
    context = click.get_current_context()
    sources = [context.get_parameter_source(option) for option in (f"{name}_file", name)]
    if sources[0] == sources[1]:
        option = name.replace("_", "-")
        raise OperatorError(f"--{option} cannot be combined with --{option}-file")
    return sources[0] == ParameterSource.COMMANDLINE


def _url_in(file: Path, subject: str) -> str:
    """Returns the URL in a file. Error messages do not show the file's contents, which may include a password."""
    with os_errors_of(subject):
        try:
            with file.open("rb") as source:  # the file might be endless, such as /dev/zero
                lines = source.read(URL_FILE_MAX).decode().split("\n")
        except UnicodeDecodeError:
            raise OperatorError(f"{subject}: the file is not UTF-8") from None
    if not lines[0].strip() or any(line.strip() for line in lines[1:]):
        raise OperatorError(f"{subject}: the file must contain only the URL, on a single line")
    return lines[0].strip()


def limit_option(default: int, most: int = 10_000) -> Callable[[F], F]:
    return click.option("--limit", type=WholeNumber(1, most), default=default, show_default=True, metavar="N",
                        help="Show at most N results.")  # fmt: skip


def confirm(question: str, yes: bool, *listed: str) -> None:
    """Asks the operator to confirm, unless --yes was given. On a terminal, first prints the lines in `listed`.

    Raises OperatorError if the answer is anything but yes.
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
    else:  # without a terminal, only the error message is shown, so include the question
        confirmed = sys.stdin is not None and sys.stdin.readline().strip().lower() in ("y", "yes")
        question += " "
    if not confirmed:
        raise OperatorError(f"{question}Aborted. Use --yes to skip the prompt.")


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
env_option = click.option("--env", "environment", type=click.Choice(ENVIRONMENTS), default="live", show_default=True,
                          help="The environment to use.")  # fmt: skip
