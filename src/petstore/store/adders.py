"""Stores the adders: the API keys, imports and operators that add animals.

Each animal refers to its adder by number, which takes at most four bytes. A name would take about 30.
"""

from petstore.pets import Adder
from petstore.store.database import Tx


async def enroll(tx: Tx, schema: str, adder: Adder) -> None:
    """Assigns a number to an adder, unless the adder already has one."""
    await tx.execute(
        f"INSERT INTO {schema}.adders (kind, name) VALUES ($1, $2) ON CONFLICT (kind, name) DO NOTHING", *adder
    )


async def number_of(tx: Tx, schema: str, adder: Adder) -> int:
    """Returns an adder's number. If the adder is new, assigns a number first."""
    await enroll(tx, schema, adder)
    rows = await tx.execute(f"SELECT id FROM {schema}.adders WHERE kind = $1 AND name = $2", *adder)
    return int(rows[0][0])
