"""How times, numbers of things and the cells of a table are written for operators."""

import time


def when(at: float | None) -> str:
    return "never" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def as_cell(text: str) -> str:
    """A text in a CSV file that a spreadsheet opens: it would execute a cell that begins like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
