"""Reads and writes complete rows, for `petstore copy`."""

from collections.abc import Sequence

from petstore.changes import CHANGES
from petstore.store.database import OPERATOR_TIMEOUT, Database, Tx
from petstore.store.schema import COUNTERS, Row, Table

NUMBERED = ("adders", "pets", "audit")  # the tables whose ids the store assigns


class Transfer:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        """Adds the rows in a single transaction. The rows must be ordered by primary key.

        Ensures that ids assigned later are higher than the ids of these rows.
        """

        async def transaction(tx: Tx) -> None:
            if table is COUNTERS:
                for name, last in rows:
                    await self._db.raise_last_id(tx, name, last)
                return
            await tx.put(table, rows)
            if rows and table.name in NUMBERED:
                await self._db.raise_last_id(tx, table.name, rows[-1][0])

        await self._db.write(transaction, CHANGES, OPERATOR_TIMEOUT)

    async def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        """Returns up to `limit` rows, ordered by primary key. `after` is the key of the last row already read."""
        columns, key = ", ".join(table.columns), ", ".join(table.key)
        places = ", ".join(f"${place}" for place in range(2, len(table.key) + 2))
        where = f"WHERE ({key}) > ({places})" if after else ""
        source = f"{self._db.counters} AS counters" if table is COUNTERS else f"{self._db.schema}.{table.name}"
        rows = await self._db.read_long(
            f"SELECT {columns} FROM {source} {where} ORDER BY {key} LIMIT $1", limit, *(after or ())
        )
        return [tuple(row) for row in rows]
