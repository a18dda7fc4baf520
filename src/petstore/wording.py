"""How times, numbers of things, cells of a table and texts of clients are written for operators."""

import re
import time

# Control characters, line separators, marks of writing direction, lone surrogates: a terminal or an editor may act on
# them. None is beyond four hexadecimal digits.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with control characters as escapes, such as `\\u001b`. JSON on one line means the same afterwards."""
    return text if text.isprintable() else _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_lines(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def when(at: float | None) -> str:
    return "never" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def as_cell(text: str) -> str:
    """A text in a CSV file that a spreadsheet opens: it would execute a cell that begins like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
