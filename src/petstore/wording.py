"""How times, numbers of things and the cells of a table are written for operators."""

import time
from datetime import UTC, datetime


def when(at: float | None) -> str:
    return "never" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def parse_time(text: str) -> float:
    """Unix seconds of a time like 2026-11-18, 2026-11-18 14:00 or 2026-11-18T14:00:00Z. Raises ValueError.

    Without a time zone, it is in UTC.
    """
    found = datetime.fromisoformat(text.strip())
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def as_cell(text: str) -> str:
    """A text in a CSV file that a spreadsheet opens: it would execute a cell that begins like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
