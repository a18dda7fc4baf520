"""Who has added animals: API keys, imports and operators. An animal refers to its adder by a small number.

A text in each animal would take about 30 bytes, the number takes one to four.
"""

from petstore.pets import Adder
from petstore.store.database import Database, Statement, Transaction


def enrolled(schema: str, adder: Adder) -> Statement:
    """Part of a transaction: give an adder a number, unless it has one."""
    return Statement(
        f"INSERT INTO {schema}.adders (kind, name) VALUES ($1, $2) ON CONFLICT (kind, name) DO NOTHING", adder
    )


def number_of(db: Database, adder: Adder) -> Transaction[int]:
    """Part of a transaction: the number of an adder, which may be new."""
    yield enrolled(db.schema, adder)
    rows = yield Statement(f"SELECT id FROM {db.schema}.adders WHERE kind = $1 AND name = $2", adder)
    return int(rows[0][0])
