"""The tables that every backend has, for moving rows from one store to another."""

from collections.abc import Sequence
from typing import Any, NamedTuple

Row = tuple[Any, ...]


class Table(NamedTuple):
    """`key` names the columns that a row is found by and that rows are ordered by."""

    name: str
    columns: Sequence[str]
    key: Sequence[str]

    def key_of(self, row: Row) -> Row:
        return tuple(row[self.columns.index(column)] for column in self.key)


# In the order in which rows may be added: a secret needs its key.
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

# The last id that each table has given out, which may be above those of all rows that are left. Rows that are put
# there only ever raise it.
COUNTERS = Table("counters", ("name", "last"), ("name",))
