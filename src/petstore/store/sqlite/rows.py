"""Builds statements that take many rows as bound parameters."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

ROWS_MAX = 40  # rows per statement; small enough that a statement for every number of rows can be cached

T = TypeVar("T")


def portions(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Splits the rows into consecutive groups of at most ROWS_MAX."""
    for start in range(0, len(rows), ROWS_MAX):
        yield rows[start : start + ROWS_MAX]


def rows_sql(columns: Sequence[str], rows: int) -> str:
    """Builds a query that yields its parameters as rows with these columns."""
    names = ", ".join(f"column{number} AS {column}" for number, column in enumerate(columns, 1))
    row = f"({', '.join('?' for _ in columns)})"
    return f"SELECT {names} FROM (VALUES {', '.join([row] * rows)})"
