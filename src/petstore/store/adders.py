"""Stores the adders: the API keys, imports and operators that add animals.

Each animal refers to its adder by number, which takes at most four bytes. A name would take about 30.
"""

from petstore.pets import Adder
from petstore.store.database import Database, Statement, Transaction


def enrolled(schema: str, adder: Adder) -> Statement:
    """Returns a statement that assigns a number to an adder, unless the adder already has one."""
    return Statement(
        f"INSERT INTO {schema}.adders (kind, name) VALUES ($1, $2) ON CONFLICT (kind, name) DO NOTHING", adder
    )


def number_of(db: Database, adder: Adder) -> Transaction[int]:
    """Returns an adder's number. If the adder is new, assigns a number first. Runs as part of a transaction."""
    yield enrolled(db.schema, adder)
    rows = yield Statement(f"SELECT id FROM {db.schema}.adders WHERE kind = $1 AND name = $2", adder)
    return int(rows[0][0])
