"""What both stores share: the tables, the rows and what they stand for, the search for a text."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap
from typing import Any, NamedTuple

import msgspec

from petstore.errors import IdempotencyConflict
from petstore.keys import ApiKey, Environment
from petstore.pets import IdempotencyKey, Pet
from petstore.usage import (
    ANONYMOUS,
    DAY,
    HOUR,
    HOURS_KEPT,
    MINUTE,
    MINUTES_KEPT,
    TOTAL_MINUTES_KEPT,
    Interval,
    ResponseClass,
    Usage,
)

Row = tuple[Any, ...]


class Table(NamedTuple):
    """`key` names the columns that identify a row; rows are ordered by them."""

    name: str
    columns: Sequence[str]
    key: Sequence[str]

    def key_of(self, row: Row) -> Row:
        return tuple(row[self.columns.index(column)] for column in self.key)


# In the order in which rows can be added: a secret refers to its key.
TABLES = (
    Table("pets", ("id", "name", "category_id", "status"), ("id",)),
    Table(
        "keys",
        ("id", "name", "plan", "per_minute", "per_day", "scopes", "created", "expires", "revoked", "last_used"),
        ("id",),
    ),
    Table("secrets", ("digest", "key_id", "expires"), ("digest",)),
    Table("idempotency", ("key_id", "token", "body_digest", "pet_id", "status", "created"), ("key_id", "token")),
    Table("deeds", ("id", "at", "actor", "action", "subject", "detail"), ("id",)),
    Table("usage", ("key_id", "hour", "answer", "count"), ("hour", "key_id", "answer")),
    Table("usage_minutes", ("key_id", "minute", "answer", "count"), ("minute", "key_id", "answer")),
    Table("usage_days", ("key_id", "day", "answer", "count"), ("day", "key_id", "answer")),
    Table("traffic", ("step", "start", "answer", "count"), ("step", "start", "answer")),
    Table("operators", ("name", "digest", "created", "revoked"), ("name",)),
)

# The last id that each table has given out, which can be above the ids of all rows that are left. Writing a row here
# only ever raises it.
COUNTERS = Table("counters", ("name", "last"), ("name",))


# Pets and keys

KEY_COLUMNS = "k.id, k.name, k.plan, k.per_minute, k.per_day, k.scopes, k.created, k.expires, k.revoked, k.last_used"


def pets_of(rows: Sequence[Sequence[Any]]) -> list[Pet]:
    return list(starmap(Pet, rows))


def key_of(environment: Environment, row: Sequence[Any]) -> ApiKey:
    """From the columns of `KEY_COLUMNS`."""
    key_id, name, plan, per_minute, per_day, scopes, created, expires, revoked, last_used = row
    return ApiKey(
        id=key_id, name=name, environment=environment, plan=plan, per_minute=per_minute, per_day=per_day,
        scopes=tuple(scopes.split()), created=created, expires=expires, revoked=revoked, last_used=last_used,
    )  # fmt: skip


def key_of_secret(environment: Environment, row: Sequence[Any]) -> ApiKey:
    """From the columns of `KEY_COLUMNS` and the expiry of the secret: the key expires at the earlier of the two."""
    *columns, until = row
    key = key_of(environment, columns)
    if until is None or (key.expires is not None and key.expires <= until):
        return key
    return msgspec.structs.replace(key, expires=until)


def row_of(key: ApiKey) -> Row:
    return (
        key.id, key.name, key.plan, key.per_minute, key.per_day, " ".join(key.scopes),
        key.created, key.expires, key.revoked, key.last_used,
    )  # fmt: skip


class InFlight:
    """The idempotency keys whose first request is not answered yet."""

    def __init__(self) -> None:
        self._names: set[tuple[str, str]] = set()

    @contextmanager
    def only(self, idempotency_key: IdempotencyKey) -> Iterator[None]:
        """Raises IdempotencyConflict when a request with the same idempotency key is in flight."""
        name = (idempotency_key.key_id, idempotency_key.token)
        if name in self._names:
            raise IdempotencyConflict("The first request with this Idempotency-Key is still running; retry shortly.")
        self._names.add(name)
        try:
            yield
        finally:
            self._names.discard(name)


# Usage

# The seconds of an interval → its table, and the column with the start of the interval.
USAGE_TABLES: dict[Interval, tuple[str, str]] = {
    MINUTE: ("usage_minutes", "minute"),
    HOUR: ("usage", "hour"),
    DAY: ("usage_days", "day"),
}
# What is deleted by age: the table, the columns that identify a row, which rows, and their age in seconds.
EXPIRING = (
    ("usage_minutes", "minute, key_id, answer", "minute <", MINUTES_KEPT),
    ("usage", "hour, key_id, answer", "hour <", HOURS_KEPT),
    ("traffic", "step, start, answer", "step = 60 AND start <", TOTAL_MINUTES_KEPT),
)
EXPIRE_MAX = 500  # rows deleted in one transaction, so that creates do not wait long for the write lock


def usage_rows(rows: Iterable[Usage], interval: Interval) -> list[Usage]:
    """The rows of keys, summed per interval; sorted, because writers that lock rows in one order cannot deadlock."""
    counts: Counter[tuple[str, int, ResponseClass]] = Counter()
    for row in rows:
        if row.key_id != ANONYMOUS:
            counts[row.key_id, row.start // interval * interval, row.response] += row.requests
    return sorted(Usage(*cell, n) for cell, n in counts.items())


def total_rows(rows: Iterable[Usage]) -> list[tuple[int, int, ResponseClass, int]]:
    """The same requests for all keys together: interval, start, class of response and count."""
    counts: Counter[tuple[int, int, ResponseClass]] = Counter()
    for row in rows:
        for interval in (MINUTE, HOUR):
            counts[interval, row.start // interval * interval, row.response] += row.requests
    return sorted((*cell, n) for cell, n in counts.items())


# Search

# The rows that one search reads at most. Then the caller learns how far the search came.
SEARCH_STEP = 25_000

_TO_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_NEVER_STORED = re.compile("[\x00\ud800-\udfff]").search


def spellings(text: str) -> list[str]:
    """What to search for in names whose letters A to Z were made lower case, which both stores do alike.

    What other letters become differs between stores, so the search tries them as typed, in lower case, in upper case
    and in title case. Empty when no name can contain the text.
    """
    if not text or _NEVER_STORED(text):
        return []
    return sorted({form.translate(_TO_LOWER) for form in (text, text.lower(), text.upper(), text.title())})
