"""Prints command output: tables, fields, JSON, CSV, secrets and progress bars."""

import contextlib
import csv
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO, cast

import click
import msgspec

from petstore.errors import OperatorError
from petstore.wording import printable, printable_lines

MIN_WIDTH = 80  # characters; tables can be this wide even if the terminal is narrower
CLOSE_WIDTH = 100  # characters; on narrower terminals, columns are separated by one space instead of two
ID_MAX = 20  # maximum length of an id; longer values in a table can be wrapped


def use_utf8() -> None:
    """Sets standard output to UTF-8, regardless of the locale, because programs might read the output."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


class _Terminal(io.TextIOBase):
    """Writes to standard output and escapes control characters, because a terminal would interpret them."""

    def write(self, text: str) -> int:
        return sys.stdout.write(printable_lines(text))


def data_output() -> TextIO:
    """Returns a stream that writes to standard output and, on a terminal, escapes control characters."""
    use_utf8()
    return cast(TextIO, _Terminal()) if sys.stdout.isatty() else sys.stdout


class Table(NamedTuple):
    """A table. To make ids easy to copy, ids in the first column and in the `whole` columns are not wrapped."""

    columns: Sequence[str]
    rows: list[list[str]]
    empty: str  # printed if there are no rows
    whole: Sequence[str] = ()


class Csv(NamedTuple):
    """A table that is printed as CSV, for spreadsheets and programs."""

    columns: Sequence[str]
    rows: list[list[str | int]]


class Output:
    """A command's output. With --json, this is `data`. Otherwise, it is `parts`: sentences, fields, tables and CSV."""

    def __init__(self, data: Any, *parts: str | dict[str, str] | Table | Csv, more: str = "", remedy: str = "") -> None:
        """`more` names the option that shows more results. `remedy` says what to do if a secret cannot be printed."""
        self._data = data
        self._parts = parts
        self._more = more
        self._remedy = remedy

    def print(self, as_json: bool) -> None:
        with printing_secret(self._remedy) if self._remedy else contextlib.nullcontext():
            if as_json:
                use_utf8()
                encoded = msgspec.json.encode(self._data, enc_hook=str)
                click.echo(printable_lines(msgspec.json.format(encoded, indent=2).decode()))
            for part in () if as_json else self._parts:
                if isinstance(part, Table):
                    _print_table(*part)
                elif isinstance(part, Csv):
                    csv.writer(data_output(), lineterminator="\n").writerows([part.columns, *part.rows])
                elif isinstance(part, dict):
                    _print_fields(part)
                else:
                    click.echo(printable_lines(part))
        if self._more:  # standard output is reserved for data
            click.echo(f"There are more results. To see them, run the same command with {self._more}.", err=True)


def _print_table(columns: Sequence[str], rows: list[list[str]], empty: str, whole: Sequence[str]) -> None:
    if not rows:
        click.echo(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Do not wrap lines when writing to a pipe or a file, because scripts might read them.
    width = max(Console().width, MIN_WIDTH) if sys.stdout.isatty() else 10_000
    table = Table(box=None, padding=(0, 1 if width < CLOSE_WIDTH else 2, 0, 0), pad_edge=False, header_style="bold")
    cells = [[Text(printable(cell)) for cell in row] for row in rows]
    for number, name in enumerate(columns):
        widest = max(row[number].cell_len for row in cells) if number == 0 or name in whole else 0
        table.add_column(name.upper(), overflow="fold", no_wrap=0 < widest <= ID_MAX, min_width=min(widest, ID_MAX))
    for row in cells:
        table.add_row(*row)
    Console(width=width).print(table, crop=False)


def _print_fields(fields: dict[str, str]) -> None:
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        click.echo(f"{name:<{width}}  {printable(value)}")


@contextlib.contextmanager
def printing_secret(remedy: str) -> Iterator[None]:
    """Wraps code that prints a secret. If printing fails, raises OperatorError with the remedy."""
    if getattr(sys.stdout, "name", "") == os.devnull:  # `petstore.cli.main` replaces a closed stream with /dev/null
        raise OperatorError(f"standard output is closed, so the secret is lost. {remedy}")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        reason = f"cannot write to standard output: {error.strerror}"
        raise OperatorError(f"{reason}. The secret is lost. {remedy}") from error


def progress(label: str, length: int) -> contextlib.AbstractContextManager[Any]:
    """Returns a progress bar, which is shown only if standard error is a terminal."""
    hidden, steps = not sys.stderr.isatty(), max(1, length // 200)
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=hidden, update_min_steps=steps)


def reaching(bar: Any) -> Callable[[int], None]:
    """Returns a function that moves a progress bar to an absolute position.

    The function keeps track of the position, because `bar.pos` lags behind.
    """
    reached = 0

    def reach(place: int) -> None:
        nonlocal reached
        bar.update(place - reached)
        reached = place

    return reach
