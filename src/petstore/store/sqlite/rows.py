"""Builds statements that take many rows as bound parameters."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

ROWS_MAX = 40  # rows per statement; small enough to cache a separate statement for each number of rows

T = TypeVar("T")


def portions(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Splits the rows, in order, into portions of at most ROWS_MAX rows."""
    for start in range(0, len(rows), ROWS_MAX):
        yield rows[start : start + ROWS_MAX]


def rows_sql(columns: Sequence[str], rows: int) -> str:
    """Returns a query that returns its own parameters as rows with these columns."""
    names = ", ".join(f"column{number} AS {column}" for number, column in enumerate(columns, 1))
    row = f"({', '.join('?' for _ in columns)})"
    return f"SELECT {names} FROM (VALUES {', '.join([row] * rows)})"
