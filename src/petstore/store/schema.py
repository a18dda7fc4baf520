"""Code shared by both backends: tables and their columns, row conversion, migrations, and text search."""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from petstore.errors import OperatorError
from petstore.keys import ApiKey, Environment
from petstore.pets import NewPet, Pet

Row = tuple[Any, ...]
NEWER = "was written by a newer Petstore (schema {}, this version supports {}); upgrade Petstore"
UNRECOGNISED = "was not written by Petstore 1.0 or later"
NOT_MIGRATED = "is missing or has an older schema; `petstore serve` creates or migrates it"


class Table(NamedTuple):
    """A table. `key` lists the columns of the primary key. `petstore copy` copies the rows in primary key order."""

    name: str
    columns: Sequence[str]
    key: Sequence[str]

    def primary_key_of(self, row: Row) -> Row:
        return tuple(row[self.columns.index(column)] for column in self.key)


# The columns for animals and for new animals, in the same order as the fields of `Pet` and `NewPet`. TYPES contains
# the PostgreSQL types of the columns for new animals.
PET_FIELDS: tuple[str, ...] = Pet.__struct_fields__
NEW_PET_FIELDS: tuple[str, ...] = NewPet.__struct_fields__
TYPES = {"name": "text", "category_id": "bigint", "status": "text"}
PET_COLUMNS = ", ".join(PET_FIELDS)
NEW_PET_COLUMNS = ", ".join(NEW_PET_FIELDS)
# The columns of a key, except for the environment, which is the same for all keys in a store.
KEY_FIELDS = tuple(field for field in ApiKey.__struct_fields__ if field != "environment")
KEY_COLUMNS = ", ".join(f"k.{field}" for field in KEY_FIELDS)

ADDERS = Table("adders", ("id", "kind", "name"), ("id",))
PETS = Table("pets", (*PET_FIELDS, "edited", "added_by", "added_at"), ("id",))
REMOVALS = Table("removals", ("id", "at", "actor"), ("id",))
REMOVED_PETS = Table("removed_pets", (*PETS.columns, "removal_id"), ("id",))
KEYS = Table("keys", KEY_FIELDS, ("id",))
SECRETS = Table("secrets", ("digest", "key_id", "number", "expires"), ("digest",))
IDEMPOTENCY = Table(
    "idempotency", ("key_id", "token", "body_digest", "pet_id", *NEW_PET_FIELDS, "created"), ("key_id", "token")
)
IMPORTS = Table("imports", ("id", "at", "actor", "name", "sha256", "total", "added", "state", "last_chunk"), ("id",))
IMPORT_CHUNKS = Table("import_chunks", ("import_id", "place", "first_id", "count"), ("import_id", "place"))
AUDIT = Table("audit", ("id", "at", "actor", "action", "subject", "detail"), ("id",))
USAGE = Table(
    "usage",
    ("seconds", "start", "key_id", "operation", "measure", "count"),
    ("seconds", "start", "key_id", "operation", "measure"),
)
USAGE_TOTALS = Table("usage_totals", ("seconds", "start", "measure", "count"), ("seconds", "start", "measure"))
COUNTED_ADMISSIONS = Table(
    "counted_admissions", ("key_id", "epoch", "operation", "total"), ("key_id", "epoch", "operation")
)
RECENT_ERRORS = Table(
    "recent_errors",
    ("key_id", "at", "request_id", "operation", "status", "code", "path"),
    ("key_id", "at", "request_id"),
)
OPERATORS = Table("operators", ("name", "digest", "created", "revoked", "role"), ("name",))
# The tables that `petstore copy` copies. Referenced tables come first, to satisfy foreign keys: keys before secrets,
# removals before removed animals.
TABLES = (
    PETS,
    ADDERS,
    REMOVALS,
    REMOVED_PETS,
    KEYS,
    SECRETS,
    IDEMPOTENCY,
    IMPORTS,
    IMPORT_CHUNKS,
    AUDIT,
    USAGE,
    USAGE_TOTALS,
    COUNTED_ADMISSIONS,
    RECENT_ERRORS,
    OPERATORS,
)

# Tables that describe the database itself. They are not copied.
OWN_TABLES = ("changes",)

# Not a real table. Each row contains the last id assigned in one of the tables. That id can be higher than any id in
# the table, because rows can be removed. Writing a row to COUNTERS can raise the last id but never lower it.
COUNTERS = Table("counters", ("name", "last"), ("name",))


# Returns the values of NEW_PET_COLUMNS for an animal.
new_pet_row: Callable[[NewPet | Pet], Row] = attrgetter(*NEW_PET_FIELDS)


def key_from_row(environment: Environment, row: Sequence[Any]) -> ApiKey:
    """Converts a row with the columns KEY_COLUMNS to a key."""
    values = dict(zip(KEY_FIELDS, row, strict=True))
    values["scopes"] = tuple(values["scopes"].split())
    return ApiKey(environment=environment, **values)


def key_from_secret_row(environment: Environment, row: Sequence[Any], until: float | None) -> ApiKey:
    """Converts a row to a key. The key expires no later than its secret, which expires at `until`."""
    key = key_from_row(environment, row)
    if until is None or (key.expires is not None and key.expires <= until):
        return key
    return msgspec.structs.replace(key, expires=until)


def key_row(key: ApiKey) -> Row:
    """Converts a key to a row of the table `keys`."""
    return tuple(" ".join(key.scopes) if field == "scopes" else getattr(key, field) for field in KEY_FIELDS)


# Migrations


class Migration(NamedTuple):
    version: int  # the schema version after this migration
    sql: str


_FILES = sorted(resources.files("petstore.store").joinpath("migrations").iterdir(), key=lambda file: file.name)
NEWEST_SCHEMA = int(_FILES[-1].name[:4])


def migrations_in(types: Mapping[str, str]) -> tuple[Migration, ...]:
    """Returns all migrations in a backend's dialect, in order. The first one creates all tables in an empty store.

    `types` maps the names in braces to the backend's spelling.
    """
    return tuple(Migration(int(file.name[:4]), file.read_text().format(**types)) for file in _FILES)


def pending(migrations: Sequence[Migration], version: int) -> list[Migration]:
    """Returns the migrations that a store with this schema version needs, in order. An empty store has version 0.

    Raises OperatorError if a newer version of Petstore has migrated the store.
    """
    newest = migrations[-1].version
    if version > newest:
        raise OperatorError(NEWER.format(version, newest))
    return [migration for migration in migrations if migration.version > version]


# Search

_TO_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_NEVER_STORED = re.compile("[\x00\ud800-\udfff]").search


def can_be_stored(text: str) -> bool:
    """Returns whether a string can be stored. PostgreSQL rejects NUL and surrogates."""
    return not _NEVER_STORED(text)


def spellings(text: str) -> list[str]:
    """Returns the spellings of `text` to search for. The list is empty if `text` is empty or cannot be stored.

    Both backends search strings in which only the letters A to Z have been converted to lower case. To match other
    letters regardless of case, the spellings include them as typed, in lower case, in upper case and in title case.
    """
    if not text or not can_be_stored(text):
        return []
    return sorted({form.translate(_TO_LOWER) for form in (text, text.lower(), text.upper(), text.title())})
