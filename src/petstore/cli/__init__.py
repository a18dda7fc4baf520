"""The `petstore` command: its list of commands, its exit codes, its streams. Each command has a file of its own."""

import contextlib
import importlib
import io
import os
import sys
from pathlib import Path
from typing import TextIO

import click
from click.core import ParameterSource

from petstore import __version__
from petstore.data_dir import UMASK
from petstore.errors import PetstoreError

COMMANDS = {
    "serve": ("petstore.cli.serve", "Start the service."),
    "keys": ("petstore.cli.keys", "Issue, list, show, change, rotate and revoke API keys."),
    "pets": ("petstore.cli.pets", "List, show, add, change, remove, restore, import and export animals."),
    "bans": ("petstore.cli.bans", "List and lift temporary bans."),
    "usage": ("petstore.cli.usage", "Show the requests of keys, with a chart for each."),
    "audit": ("petstore.cli.audit", "Show who did what, and when."),
    "operators": ("petstore.cli.operators", "Add, list and revoke the people who may sign in to the console."),
    "console": ("petstore.cli.console", "Start the console, a web page for operators."),
    "backup": ("petstore.cli.backup", "Write all data to one file while the service runs."),
    "restore": ("petstore.cli.backup", "Replace the data with those of a backup."),
    "copy": ("petstore.cli.copy", "Copy everything to other backends: to a cluster, or back."),
    "check": ("petstore.cli.check", "Check data, settings, free space and clock."),
    "verify": ("petstore.cli.verify", "Check a deployment through the addresses that clients use."),
    "deploy-files": ("petstore.cli.deploy_files", "Write files for systemd, proxies and monitoring to a directory."),
    "completion": ("petstore.cli.completion", "Print what lets a shell complete commands, options and key ids."),
    "help": ("petstore.cli.help", "Show the help of a command, or of the options that choose the data."),
}


class LazyGroup(click.Group):
    """Imports a command's module when the command is named, which keeps `petstore --help` fast."""

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
            from petstore.cli.options import unknown_command

            raise unknown_command(args[0], list(COMMANDS), ctx)
        return super().resolve_command(ctx, args)

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
      petstore serve --demo                   the same, with example animals, keys and usage
      petstore keys create --plan pro         issue another key
      petstore pets import animals.jsonl      fill the catalogue

    The options --data, --store and --gate choose the data that a command acts on: see petstore help backends. A running
    service obeys from the next request on.
    """


def main() -> None:
    """Run a command. An error that the operator can correct is one line and exit code 2."""
    _prepare_streams()
    os.umask(UMASK)
    try:
        outcome = cli(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(outcome if isinstance(outcome, int) else 0)  # click returns the code of an Exit as a value
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
    """Names the variable that a wrong value came from, and where an option belongs."""
    context = error.ctx
    if isinstance(error, click.NoSuchOption) and context is not None and context.parent is None:
        return f"{error.format_message()} Put options after the command, as in petstore keys list {error.option_name} …"
    if isinstance(error, click.BadParameter) and context is not None and isinstance(error.param, click.Option):
        name = str(error.param.name)
        if context.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
            return f"Invalid value for {variable_of(error.param, context)}: {error.message}"
    return error.format_message()


def variable_of(option: click.Option, context: click.Context) -> str:
    """The variable of the environment that sets an option."""
    if option.envvar is not None:
        return str(option.envvar)
    return f"{context.auto_envvar_prefix}_{str(option.name).upper()}"


def _prepare_streams() -> None:
    """Replaces a closed stream by /dev/null. A stream that is not UTF-8 prints other characters as escapes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _null())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _null() -> TextIO:
    return Path(os.devnull).open("w")


def _fail(message: str) -> None:
    """A message may repeat an argument, which may be a secret by mistake, and what a forged file has."""
    # Only here: they take longer to import than `petstore --help` to run.
    from petstore.keys import without_keys
    from petstore.wording import printable_lines

    _end(2, f"petstore: {printable_lines(without_keys(message))}")


def _end(code: int, message: str = "") -> None:
    try:
        sys.stdout.flush()
    except OSError:  # Python would flush again at its end, and print a traceback
        sys.stdout = _null()
    with contextlib.suppress(OSError):
        click.echo(message, err=True, nl=bool(message))
    sys.exit(code)
