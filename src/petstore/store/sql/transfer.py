"""Rows as they are, for moving them to and from another store."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from petstore.store.limits import OPERATOR_TIMEOUT
from petstore.store.schema import COUNTERS, Row, Table
from petstore.store.sql import Database, ForEachRow, Statement, Transaction

CONTENT = ("pets", "keys", "deeds")  # a store is empty when these tables are


class SqlTransfer(Database):
    """See `Transfer` for what each method does."""

    counters: str  # the table COUNTERS, as a subquery

    @abstractmethod
    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None: ...

    @abstractmethod
    def _raise_last_id(self, table: str, last: int) -> Transaction[None]:
        """Let no id up to this one be given out again."""

    async def put_all(self, rows: Mapping[Table, Sequence[Row]]) -> bool:
        def transaction() -> Transaction[bool]:
            tables = [f"{self.schema}.{name}" for name in CONTENT]
            if self.for_update:
                yield Statement(f"LOCK TABLE {', '.join(tables)} IN SHARE ROW EXCLUSIVE MODE")
            for table in tables:
                if (yield Statement(f"SELECT 1 FROM {table} LIMIT 1")):
                    return False
            for each in rows:
                if each is not COUNTERS:
                    yield self._put(each, rows[each])
            for name, last in rows.get(COUNTERS, ()):
                yield from self._raise_last_id(name, last)
            yield self._note_moving()
            return True

        is_filled = await self._run(transaction(), "keys", OPERATOR_TIMEOUT)
        if is_filled:
            await self._on_commit("catalogue")
        return is_filled

    def _put(self, table: Table, rows: Sequence[Row]) -> ForEachRow:
        places = ", ".join(f"${place}" for place in range(1, len(table.columns) + 1))
        return ForEachRow(
            f"INSERT INTO {self.schema}.{table.name} ({', '.join(table.columns)}) VALUES ({places})", rows
        )

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
