"""Rows as they are, into PostgreSQL."""

from collections.abc import Sequence

from petstore.store.limits import OPERATOR_TIMEOUT
from petstore.store.postgres.database import PostgresDatabase, run
from petstore.store.postgres.pool import Connection, long_transaction
from petstore.store.schema import COUNTERS, Row, Table
from petstore.store.sql import Statement, Transaction
from petstore.store.sql.transfer import SqlTransfer

SEQUENCES = {"pets": "pet_ids", "deeds": "deed_ids"}  # where the ids of a table come from


class PostgresTransfer(PostgresDatabase, SqlTransfer):
    """See `Transfer` for what each method does."""

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        async def work(connection: Connection) -> None:
            async with long_transaction(connection):
                if table is COUNTERS:
                    for name, last in rows:
                        await run(connection, self._raise_last_id(name, last))
                    return
                await connection.copy_records_to_table(
                    table.name, schema_name=self.schema, columns=list(table.columns), records=rows
                )
                if table.name in SEQUENCES:
                    await run(connection, self._raise_last_id(table.name, rows[-1][0]))

        await self._pool.run(work, OPERATOR_TIMEOUT)

    @property
    def counters(self) -> str:  # type: ignore[override]  # a constant of the instance
        """Without sequences that have given out nothing."""
        selects = (
            f"SELECT '{name}'::text AS name, last_value AS last FROM {self.schema}.{sequence} WHERE is_called"
            for name, sequence in SEQUENCES.items()
        )
        return f"({' UNION ALL '.join(selects)})"

    def _raise_last_id(self, table: str, last: int) -> Transaction[None]:
        sequence = f"{self.schema}.{SEQUENCES[table]}"
        yield Statement(
            f"SELECT setval('{sequence}', $1) FROM {sequence} WHERE NOT is_called OR last_value < $1", (last,)
        )
