"""Defines the `petstore` command, with its subcommands, exit codes and output streams.

Each group of commands has its own module.
"""

import contextlib
import importlib
import io
import os
import resource
import shlex
import sys
from pathlib import Path
from typing import TextIO

import click
from click.core import ParameterSource

from petstore import __version__
from petstore.data_dir import UMASK
from petstore.errors import PetstoreError
from petstore.job_control import defer_stops

COMMANDS = {
    "serve": ("petstore.cli.serve", "Start the service."),
    "keys": ("petstore.cli.keys", "Create, list, show, change, rotate and revoke API keys."),
    "pets": ("petstore.cli.pets", "List, show, add, change, remove, restore, import and export animals."),
    "bans": ("petstore.cli.bans", "List and lift temporary bans."),
    "usage": ("petstore.cli.usage", "Show how many requests each key has sent, with a sparkline for each key."),
    "audit": ("petstore.cli.audit", "Show who did what, and when."),
    "operators": ("petstore.cli.operators", "Add, list and revoke operators, who can sign in to the console."),
    "console": ("petstore.cli.console", "Start the console, a web page for operators."),
    "backup": ("petstore.cli.backup", "Back up all data to one file, even while the service is running."),
    "restore": ("petstore.cli.backup", "Restore all data from a backup."),
    "copy": ("petstore.cli.copy", "Copy all data to other backends, such as PostgreSQL and Redis."),
    "check": ("petstore.cli.check", "Check the settings, the data, free space and the clock."),
    "verify": ("petstore.cli.verify", "Check a deployment over HTTP, as its clients see it."),
    "deploy-files": ("petstore.cli.deploy_files", "Write files for systemd, proxies and monitoring to a directory."),
    "completion": ("petstore.cli.completion", "Print a shell completion script."),
    "help": ("petstore.cli.help", "Show help for a command or for the backend options."),
}


class LazyGroup(click.Group):
    """Keeps `petstore --help` fast by importing a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[name][0]), name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="petstore", prog_name="petstore")
def cli() -> None:
    """Petstore: a pet store service with an HTTP and JSON API.

    \b
    First steps:
      petstore serve                          start on 127.0.0.1:8080; the first run prints a key
      petstore serve --demo                   start with example animals, keys and usage
      petstore keys create --plan pro         create another key
      petstore pets import animals.jsonl      import animals from a file

    Use --data, --store and --gate to choose the data that a command uses. See petstore help backends.
    Changes take effect with the next request to a running service.
    """


def main() -> None:
    """Runs a command. On an error that the operator can correct, prints one line and exits with code 2."""
    _prepare_streams()
    os.umask(UMASK)
    # A core dump would contain secrets. Worker processes inherit this limit.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    defer_stops()
    try:
        outcome = cli(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(outcome if isinstance(outcome, int) else 0)  # the outcome is an int if a command raised Exit
    except click.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        _end(2, error.format_message())
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        _fail(" ".join(_usage_message(error).split()) + hint)
    except click.ClickException as error:
        _fail(error.format_message())
    except PetstoreError as error:
        _fail(str(error))
    except UnicodeEncodeError as error:
        _fail(f"{error.object!r}: not valid UTF-8")
    except BrokenPipeError:
        _end(0)
    except OSError as error:
        subject = f"{error.filename}: " if error.filename else ""
        _fail(subject + (error.strerror or repr(error)))


def _usage_message(error: click.UsageError) -> str:
    """Returns the message for a usage error. Adds a hint if an option was placed before the command.

    If an invalid value came from an environment variable, the message names the variable instead of the option.
    """
    context = error.ctx
    if isinstance(error, click.NoSuchOption) and context is not None and context.parent is None:
        return error.format_message() + _options_after_command(sys.argv[1:])
    if isinstance(error, click.BadParameter) and context is not None and isinstance(error.param, click.Option):
        name = str(error.param.name)
        if context.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
            return f"Invalid value for {variable_of(error.param, context)}: {error.message}"
    return error.format_message()


def _options_after_command(words: list[str]) -> str:
    """Returns a hint that options belong after the command, or an empty string if there is no command."""
    from petstore.cli.suggestions import as_typed
    from petstore.settings import without_password

    first = next((number for number, word in enumerate(words) if word in COMMANDS), None)
    if first is None:
        return ""
    typed = shlex.join(without_password(word) if "://" in word else word for word in words[first:] + words[:first])
    return as_typed(f" Put options after the command: `petstore {typed}`.")


def variable_of(option: click.Option, context: click.Context) -> str:
    """Returns the name of the environment variable that sets an option."""
    if option.envvar is not None:
        return str(option.envvar)
    return f"{context.auto_envvar_prefix}_{str(option.name).upper()}"


def _prepare_streams() -> None:
    """Replaces closed output streams with /dev/null, and sets open ones to escape unencodable characters."""
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)  # gets descriptor 0, the lowest one that is free, so that no socket gets it
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, null := _null())
            os.set_inheritable(null.fileno(), True)  # for the workers of the service
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _null() -> TextIO:
    return Path(os.devnull).open("w")


def _fail(message: str) -> None:
    """Prints an error message and exits. Hides secrets and escapes control characters in the message."""
    # Imported here rather than at the top, because these imports would slow down `petstore --help`.
    from petstore.keys import without_keys
    from petstore.wording import printable_lines

    _end(2, f"petstore: {printable_lines(without_keys(message))}")


def _end(code: int, message: str = "") -> None:
    try:
        sys.stdout.flush()
    except OSError:  # on exit, Python would flush stdout again and print a traceback
        sys.stdout = _null()
    with contextlib.suppress(OSError):
        click.echo(message, err=True, nl=bool(message))
    sys.exit(code)
