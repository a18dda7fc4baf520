"""What both backends share: the tables, the conversion of rows, the search for a text.

Some names in the database are older than those in the code: `deeds` holds audit entries, `traffic` the usage of all
keys together, `answer` the class of a response, `step` an interval. Renaming them would stop a process of the version
before, which may still run on the same database during an upgrade.
"""

import re
import string
from collections.abc import Sequence
from itertools import starmap
from typing import Any, NamedTuple

import msgspec

from petstore.keys import ApiKey, Environment
from petstore.pets import Pet

Row = tuple[Any, ...]
NEWER = "was written by a newer Petstore (schema {}, this one knows {}); upgrade Petstore"
UNFINISHED_COPY = "the copy of {} to this store is not finished: run petstore copy again"


class Table(NamedTuple):
    """`key` names the columns that identify a row; rows are ordered by them."""

    name: str
    columns: Sequence[str]
    key: Sequence[str]

    def key_of(self, row: Row) -> Row:
        return tuple(row[self.columns.index(column)] for column in self.key)


IMPORTS = Table(
    "imports", ("id", "at", "actor", "name", "sha256", "count", "first_id", "last_id", "state", "touched"), ("id",)
)
IMPORT_ROWS = Table(
    "import_rows", ("import_id", "status", "place", "name", "category_id"), ("import_id", "status", "place")
)
PETS = Table("pets", ("id", "name", "category_id", "status"), ("id",))
KEYS = Table(
    "keys",
    ("id", "name", "plan", "per_minute", "per_day", "scopes", "created", "expires", "revoked", "last_used"),
    ("id",),
)
SUSPENSIONS = Table("suspensions", ("key_id", "since"), ("key_id",))
# All that `petstore copy` copies, in the order in which rows can be added: a secret refers to its key.
TABLES = (
    PETS,
    KEYS,
    Table("secrets", ("digest", "key_id", "expires"), ("digest",)),
    SUSPENSIONS,
    Table("idempotency", ("key_id", "token", "body_digest", "pet_id", "status", "created"), ("key_id", "token")),
    Table("changed_pets", ("id", "name", "category_id", "at"), ("id",)),
    IMPORTS,
    IMPORT_ROWS,
    Table("deeds", ("id", "at", "actor", "action", "subject", "detail"), ("id",)),
    Table("usage", ("key_id", "hour", "answer", "count"), ("hour", "key_id", "answer")),
    Table("usage_minutes", ("key_id", "minute", "answer", "count"), ("minute", "key_id", "answer")),
    Table("usage_days", ("key_id", "day", "answer", "count"), ("day", "key_id", "answer")),
    Table(
        "usage_by_operation",
        ("seconds", "start", "key_id", "operation", "answer", "count"),
        ("seconds", "start", "key_id", "operation", "answer"),
    ),
    Table("counted_admissions", ("key_id", "epoch", "operation", "total"), ("key_id", "epoch", "operation")),
    Table("recent_errors", ("key_id", "at", "request_id", "operation", "status"), ("key_id", "at", "request_id")),
    Table("traffic", ("step", "start", "answer", "count"), ("step", "start", "answer")),
    Table("operators", ("name", "digest", "created", "revoked"), ("name",)),
    Table("operator_roles", ("name", "role"), ("name",)),
)

# The last id that each table has given out, which can be above the ids of all rows that are left. Writing a row here
# only ever raises the last id.
COUNTERS = Table("counters", ("name", "last"), ("name",))


# Pets and keys

PET_COLUMNS = ", ".join(PETS.columns)
KEY_COLUMNS = ", ".join(f"k.{column}" for column in KEYS.columns) + ", s.since"


def pets_of(rows: Sequence[Sequence[Any]]) -> list[Pet]:
    return list(starmap(Pet, rows))


def key_of(environment: Environment, row: Sequence[Any]) -> ApiKey:
    """From the columns of `KEY_COLUMNS`."""
    values = dict(zip((*KEYS.columns, "suspended"), row, strict=True))
    values["scopes"] = tuple(values["scopes"].split())
    return ApiKey(environment=environment, **values)


def key_of_secret(environment: Environment, row: Sequence[Any]) -> ApiKey:
    """From the columns of `KEY_COLUMNS` and the expiry of the secret: the key expires at the earlier of the two."""
    *columns, until = row
    key = key_of(environment, columns)
    if until is None or (key.expires is not None and key.expires <= until):
        return key
    return msgspec.structs.replace(key, expires=until)


def row_of(key: ApiKey) -> Row:
    """Of the table `keys`."""
    return (
        key.id, key.name, key.plan, key.per_minute, key.per_day, " ".join(key.scopes),
        key.created, key.expires, key.revoked, key.last_used,
    )  # fmt: skip


# Search

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
