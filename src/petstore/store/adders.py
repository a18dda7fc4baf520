"""Who added animals: API keys, imports and operators. An animal refers to its adder by a number.

The number takes one to four bytes per animal. A name would take about 30.
"""

from petstore.pets import Adder
from petstore.store.database import Database, Statement, Transaction


def enrolled(schema: str, adder: Adder) -> Statement:
    """Part of a transaction: assigns a number to an adder that has none."""
    return Statement(
        f"INSERT INTO {schema}.adders (kind, name) VALUES ($1, $2) ON CONFLICT (kind, name) DO NOTHING", adder
    )


def number_of(db: Database, adder: Adder) -> Transaction[int]:
    """Part of a transaction: returns the number of an adder. Assigns a number to a new adder."""
    yield enrolled(db.schema, adder)
    rows = yield Statement(f"SELECT id FROM {db.schema}.adders WHERE kind = $1 AND name = $2", adder)
    return int(rows[0][0])
