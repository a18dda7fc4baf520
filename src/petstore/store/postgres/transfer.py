"""Rows of a PostgreSQL store as they are, for moving them to and from another store."""

from collections.abc import Sequence

from petstore.store.postgres.base import SEQUENCES, PostgresBase
from petstore.store.postgres.pool import LONG, Connection, at_leisure
from petstore.store.schema import COUNTERS, Row, Table


class PostgresTransfer(PostgresBase):
    """See `Transfer` for what each method promises."""

    async def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        columns, key = ", ".join(table.columns), ", ".join(table.key)
        places = ", ".join(f"${number}" for number in range(2, len(table.key) + 2))
        where = f"WHERE ({key}) > ({places})" if after else ""
        source = self._counters() if table is COUNTERS else f"{self._schema}.{table.name}"
        sql = f"SELECT {columns} FROM {source} {where} ORDER BY {key} LIMIT $1"

        async def work(connection: Connection) -> list[Row]:
            async with at_leisure(connection):
                return [tuple(row) for row in await connection.fetch(sql, limit, *(after or ()))]

        return await self._pool.run(work, LONG)

    async def last_row(self, table: Table) -> Row | None:
        order = ", ".join(f"{column} DESC" for column in table.key)
        columns = ", ".join(table.columns)
        found = await self._rows(f"SELECT {columns} FROM {self._schema}.{table.name} ORDER BY {order} LIMIT 1")
        return found[0] if found else None

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        async def work(connection: Connection) -> None:
            async with at_leisure(connection):
                if table is COUNTERS:
                    for name, last in rows:
                        await self._keep_ids(connection, name, last)
                    return
                await connection.copy_records_to_table(
                    table.name, schema_name=self._schema, columns=list(table.columns), records=rows
                )
                if table.name in SEQUENCES:
                    await self._keep_ids(connection, table.name, rows[-1][0])

        await self._pool.run(work, LONG)

    def _counters(self) -> str:
        """A table as SQL; a sequence that has given out nothing is not in it."""
        selects = (
            f"SELECT '{name}'::text AS name, last_value AS last FROM {self._schema}.{sequence} WHERE is_called"
            for name, sequence in SEQUENCES.items()
        )
        return f"({' UNION ALL '.join(selects)}) AS counters"

    async def _keep_ids(self, connection: Connection, table: str, last: int) -> None:
        """Let no id be given out that was given out already."""
        sequence = f"{self._schema}.{SEQUENCES[table]}"
        await connection.execute(
            f"SELECT setval('{sequence}', $1) FROM {sequence} WHERE NOT is_called OR last_value < $1", last
        )

    async def copying_from(self) -> str | None:
        rows = await self._rows(f"SELECT source FROM {self._schema}.copying")
        return rows[0][0] if rows else None

    async def set_copying_from(self, source: str | None) -> None:
        async def work(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute(f"DELETE FROM {self._schema}.copying")
                if source is not None:
                    await connection.execute(f"INSERT INTO {self._schema}.copying VALUES ($1)", source)

        await self._pool.run(work)
