"""Rows as they are, for moving them to and from another store."""

from abc import abstractmethod
from collections.abc import Sequence

from petstore.store.schema import COUNTERS, Row, Table
from petstore.store.sql import Database, Statement, Transaction


class SqlTransfer(Database):
    """See `Transfer` for what each method does."""

    counters: str  # the table COUNTERS, as a subquery

    @abstractmethod
    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None: ...

    async def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        columns, key = ", ".join(table.columns), ", ".join(table.key)
        places = ", ".join(f"${place}" for place in range(2, len(table.key) + 2))
        where = f"WHERE ({key}) > ({places})" if after else ""
        source = f"{self.counters} AS counters" if table is COUNTERS else f"{self.schema}.{table.name}"
        rows = await self._fetch_long(
            f"SELECT {columns} FROM {source} {where} ORDER BY {key} LIMIT $1", limit, *(after or ())
        )
        return [tuple(row) for row in rows]

    async def last_row(self, table: Table) -> Row | None:
        order = ", ".join(f"{column} DESC" for column in table.key)
        columns = ", ".join(table.columns)
        found = await self._fetch(f"SELECT {columns} FROM {self.schema}.{table.name} ORDER BY {order} LIMIT 1")
        return tuple(found[0]) if found else None

    async def copying_from(self) -> str | None:
        rows = await self._fetch(f"SELECT source FROM {self.schema}.copying")
        return rows[0][0] if rows else None

    async def set_copying_from(self, source: str | None) -> None:
        def transaction() -> Transaction[None]:
            yield Statement(f"DELETE FROM {self.schema}.copying")
            if source is not None:
                yield Statement(f"INSERT INTO {self.schema}.copying (source) VALUES ($1)", (source,))
            yield self._note_moving()  # an import may have been copied that was being moved

        await self._run(transaction())
