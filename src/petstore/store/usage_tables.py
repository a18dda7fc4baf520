"""The tables that hold what keys used, the same in every backend."""

from collections import Counter
from collections.abc import Iterable

from petstore.ledger import (
    DAY,
    HOUR,
    HOURS_KEPT,
    MINUTE,
    MINUTES_KEPT,
    NOBODY,
    TRAFFIC_MINUTES_KEPT,
    Answer,
    Step,
    Usage,
)

# The seconds of a step → the table, and the column that says when a step began.
USAGE_TABLES: dict[Step, tuple[str, str]] = {
    MINUTE: ("usage_minutes", "minute"),
    HOUR: ("usage", "hour"),
    DAY: ("usage_days", "day"),
}
# What is forgotten: the table, what its rows are found by, which rows, and their age in seconds.
FORGOTTEN = (
    ("usage_minutes", "minute, key_id, answer", "minute <", MINUTES_KEPT),
    ("usage", "hour, key_id, answer", "hour <", HOURS_KEPT),
    ("traffic", "step, start, answer", "step = 60 AND start <", TRAFFIC_MINUTES_KEPT),
)
FORGET_AT_ONCE = 500  # rows: whoever waits for the same lock should not feel it


def usage_rows(rows: Iterable[Usage], step: Step) -> list[Usage]:
    """The rows of keys, added up by the step they lie in; in one order everywhere, so that writers cannot deadlock."""
    counts: Counter[tuple[str, int, Answer]] = Counter()
    for row in rows:
        if row.key_id != NOBODY:
            counts[row.key_id, row.start // step * step, row.answer] += row.requests
    return sorted(Usage(*cell, n) for cell, n in counts.items())


def traffic_rows(rows: Iterable[Usage]) -> list[tuple[int, int, Answer, int]]:
    """The same requests whoever made them: step, start, answer and count."""
    counts: Counter[tuple[int, int, Answer]] = Counter()
    for row in rows:
        for step in (MINUTE, HOUR):
            counts[step, row.start // step * step, row.answer] += row.requests
    return sorted((*cell, n) for cell, n in counts.items())
