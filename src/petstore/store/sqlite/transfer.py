"""Rows as they are, into a SQLite file."""

from collections.abc import Sequence

from petstore.store.limits import OPERATOR_TIMEOUT
from petstore.store.schema import COUNTERS, Row, Table
from petstore.store.sql import Transaction
from petstore.store.sql.transfer import SqlTransfer
from petstore.store.sqlite.database import SqliteDatabase, raise_last_id


class SqliteTransfer(SqliteDatabase, SqlTransfer):
    """See `Transfer` for what each method does."""

    counters = "(SELECT name, seq AS last FROM sqlite_sequence)"

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        def transaction() -> Transaction[None]:
            if table is COUNTERS:
                for name, last in rows:
                    yield from self._raise_last_id(name, last)
            else:
                yield self._put(table, rows)

        await self._run(transaction(), timeout_seconds=OPERATOR_TIMEOUT)

    def _raise_last_id(self, table: str, last: int) -> Transaction[None]:
        return raise_last_id(table, last)
