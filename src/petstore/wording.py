"""Formats times, counts, table cells and client-supplied text for operators."""

import re
import time
from datetime import UTC, datetime

# Control characters, line separators, directional marks and lone surrogates, which could confuse a terminal or an
# editor. All of these code points fit in four hexadecimal digits.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Escapes control characters in the style of JSON, such as `\\u001b`. Single-line JSON remains equivalent."""
    return text if text.isprintable() else _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_lines(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def could_be_id(text: str) -> bool:
    """Whether the store can look up this text as an id. PostgreSQL rejects U+0000 and lone surrogates."""
    return text.isascii() and text.isprintable()


def when(at: float | None) -> str:
    return "never" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def parse_time(text: str) -> float:
    """Converts a time such as 2026-11-18, 2026-11-18 14:00 or 2026-11-18T14:00:00Z to Unix seconds. Raises ValueError.

    The time zone defaults to UTC.
    """
    found = datetime.fromisoformat(text.strip())
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def duration_in_words(seconds: float) -> str:
    """Formats a duration in the largest unit that divides it evenly: 30 days, 36 hours, 90 minutes, 10 seconds."""
    for unit, noun in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit and seconds % unit == 0:
            return counted(int(seconds // unit), noun)
    return counted(int(seconds), "second")


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def as_cell(text: str) -> str:
    """Escapes a CSV cell that starts like a formula, so that spreadsheet programs do not execute it."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
