"""Rows of a SQLite store as they are, for moving them to and from another store."""

from collections.abc import Sequence

import apsw

from petstore.store.schema import COUNTERS, Row, Table
from petstore.store.sqlite.base import SqliteBase, keep_ids

_COUNTERS = "(SELECT name, seq AS last FROM sqlite_sequence)"


class SqliteTransfer(SqliteBase):
    """See `Transfer` for what each method promises."""

    async def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        columns, key = ", ".join(table.columns), ", ".join(table.key)
        where = f"WHERE ({key}) > ({', '.join('?' * len(table.key))})" if after else ""
        source = _COUNTERS if table is COUNTERS else table.name
        sql = f"SELECT {columns} FROM {source} {where} ORDER BY {key} LIMIT ?"
        return self._rows(sql, (*(after or ()), limit))

    async def last_row(self, table: Table) -> Row | None:
        order = ", ".join(f"{column} DESC" for column in table.key)
        found = self._rows(f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order} LIMIT 1", ())
        return found[0] if found else None

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        places = ", ".join("?" * len(table.columns))
        sql = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})"

        def work(connection: apsw.Connection) -> None:
            if table is COUNTERS:
                keep_ids(connection, rows)
            else:
                connection.executemany(sql, rows)

        await self._writer.call(work, patience=3600)

    async def copying_from(self) -> str | None:
        rows = self._rows("SELECT source FROM copying", ())
        return rows[0][0] if rows else None

    async def set_copying_from(self, source: str | None) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute("DELETE FROM copying")
            if source is not None:
                connection.execute("INSERT INTO copying VALUES (?)", (source,))

        await self._writer.call(work)
