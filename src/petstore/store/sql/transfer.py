"""Rows as they are, for moving them to and from another store."""

from collections.abc import Mapping, Sequence

from petstore.store.limits import OPERATOR_TIMEOUT
from petstore.store.schema import COUNTERS, Row, Table
from petstore.store.sql import Database, ForEachRow, PutRows, Statement, Transaction, steps

CONTENT = ("pets", "keys", "deeds")  # a store is empty when these tables are
NUMBERED = ("pets", "deeds")  # the store gives out the ids of these


class SqlTransfer(Database):
    """See `Transfer` for what each method does."""

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        await self._run(self._put(table, rows), timeout_seconds=OPERATOR_TIMEOUT)

    async def put_all(self, rows: Mapping[Table, Sequence[Row]]) -> bool:
        def transaction() -> Transaction[bool]:
            yield from self._lock_tables(*CONTENT)
            for name in CONTENT:
                if (yield Statement(f"SELECT 1 FROM {self.schema}.{name} LIMIT 1")):
                    return False
            for table in rows:
                yield from self._put(table, rows[table])
            yield self._note_moving()
            return True

        is_filled = await self._run(transaction(), "keys", OPERATOR_TIMEOUT)
        if is_filled:
            await self._on_commit("catalogue")
        return is_filled

    def _put(self, table: Table, rows: Sequence[Row]) -> Transaction[None]:
        if table is COUNTERS:
            for name, last in rows:
                yield from self._raise_last_id(name, last)
            return
        yield PutRows(self.schema, table, rows)
        if rows and table.name in NUMBERED:
            yield from self._raise_last_id(table.name, rows[-1][0])

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
        forget = Statement(f"DELETE FROM {self.schema}.copying")
        note = ForEachRow(f"INSERT INTO {self.schema}.copying (source) VALUES ($1)", [(source,)] if source else [])
        # An import may have been copied that was being moved.
        await self._run(steps(forget, note, self._note_moving()))
