"""Completes the commands suggested in messages, so that operators can run them exactly as printed.

In a message, a command is enclosed in backticks, such as `petstore WORDS`. Placeholders are in capital letters, and `…`
means the current command. `as_typed` completes all commands in a message. `suggestion` returns a single command,
to be printed by itself.
"""

import re
import shlex
import shutil
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from petstore.settings import DECLARED, without_password

BACKEND_OPTIONS = tuple(
    option
    for name, (_, declared) in DECLARED.items()
    if declared.selects_data
    for option in ((name, f"{name}_file") if declared.in_file else (name,))
)
GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
RUNNING = ("serve", "console")  # long-running; operators run other commands in another terminal
_COMMAND = re.compile("`(sudo -u \\S+ )?petstore ([^`]+)`")


def as_typed(message: str, options: str | None = None) -> str:
    """Completes the commands in a message. `options` defaults to the current backend options."""
    return _COMMAND.sub(lambda found: f"`{found[1] or ''}{_completed(found[2], options)}`", message)


def _completed(words: str, options: str | None) -> str:
    if words != "…":
        return suggestion(words, options)
    typed = [without_password(word) if "://" in word else word for word in sys.argv[1:]]
    return suggestion(shlex.join(typed), _given_options(ParameterSource.ENVIRONMENT))


def suggestion(words: str, options: str | None = None) -> str:
    """Returns a command that also works in another terminal. `options` defaults to the current backend options."""
    chosen = _given_options() if options is None else options
    return f"{_program()} {words}" + (f" {chosen}" if chosen else "")


def is_given(name: str) -> bool:
    """Returns whether the operator set this option on the command line or with an environment variable."""
    return _source(name) in GIVEN


def _source(name: str) -> ParameterSource | None:
    context = click.get_current_context(silent=True)
    return context.get_parameter_source(name) if context else None


def _given_options(*sources: ParameterSource) -> str:
    """Returns the backend options that the operator has set, and --data if the command must run in another terminal.

    Includes options set with environment variables, and makes all paths absolute, because the other terminal might have
    different variables or a different current directory. With `sources`, returns only the options set in these ways.
    """
    names = {name for name in BACKEND_OPTIONS if _source(name) in (sources or GIVEN)}
    context = click.get_current_context(silent=True)
    if not sources and context is not None and context.command.name in RUNNING and not names & {"store", "store_file"}:
        names.add("data")
    words = []
    for name in BACKEND_OPTIONS:
        if context is not None and name in names and (value := context.params.get(name)):
            words.append(f"--{name.replace('_', '-')}")
            if name in ("store", "gate"):
                words.append(without_password(value))
            elif name != "pgbouncer":
                words.append(str(value.absolute()))
    return shlex.join(words)


def _program() -> str:
    """Returns `petstore` if it is on PATH, or else a command with the path to this program."""
    if shutil.which("petstore"):
        return "petstore"
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{_from_here(Path(sys.executable))} -m petstore"
    return _from_here(called) if called.exists() else "petstore"


def _from_here(path: Path) -> str:
    try:
        relative = path.absolute().relative_to(Path.cwd())
    except ValueError:
        return shlex.quote(str(path))
    return shlex.quote(str(relative) if len(relative.parts) > 1 else f"./{relative}")
