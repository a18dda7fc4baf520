"""Options and parameter types that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from petstore.admin.durations import parse_duration
from petstore.errors import OperatorError
from petstore.pets import INT64_MAX, INT64_MIN
from petstore.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


class Int64(click.ParamType[int]):
    """A whole number of 64 bits. Unlike click.IntRange it keeps its bounds out of the help page."""

    name = "integer"

    def __init__(self, least: int = INT64_MIN) -> None:
        self._range = click.IntRange(least, INT64_MAX)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return self._range.convert(value, param, ctx)


class Duration(click.ParamType[float]):
    """A number with a unit, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(str(value))
        except OperatorError as error:
            self.fail(str(error), param, ctx)


def backend_options(command: F) -> F:
    """--data, --store, --gate and --pgbouncer: the data that a command acts on."""
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
            default=Settings().data, show_default=True, help="The data directory.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


env_option = click.option(
    "--env", "environment", type=click.Choice(["live", "staging"]), default="live", show_default=True,
    help="The environment.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
