"""What keys used, in SQLite: by minute, hour and day, and all of it together."""

from collections.abc import Sequence
from typing import Literal

import apsw
import msgspec

from petstore.store.schema import EXPIRE_MAX, EXPIRING, USAGE_TABLES, total_rows, usage_rows
from petstore.store.sqlite.base import SqliteBase
from petstore.usage import Interval, KeyTotal, TotalUsage, Usage


class SqliteUsage(SqliteBase):
    """See `UsageStore` for what each method promises."""

    async def add_usage(self, rows: Sequence[Usage], last_used: dict[str, float]) -> None:
        if not rows:
            return
        newest = max(row.start for row in rows)

        def work(connection: apsw.Connection) -> None:
            for interval, (table, column) in USAGE_TABLES.items():
                connection.executemany(
                    f"INSERT INTO {table} (key_id, {column}, answer, count) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET count = count + excluded.count",
                    usage_rows(rows, interval),
                )
            connection.executemany(
                "INSERT INTO traffic VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
                total_rows(rows),
            )
            connection.executemany(
                "UPDATE keys SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?",
                [(at, key_id) for key_id, at in last_used.items()],
            )
            _expire(connection, newest)

        await self._writer.call(work, patience=60)  # nobody waits for it, and given up it would be counted twice

    async def usage_of(self, key_ids: Sequence[str], interval: Interval, starts: Sequence[int]) -> list[Usage]:
        table, column = USAGE_TABLES[interval]
        rows = self._rows(
            f"SELECT key_id, {column}, answer, count FROM {table}"
            f" WHERE {column} IN (SELECT value FROM json_each(?)) AND key_id IN (SELECT value FROM json_each(?))",
            (msgspec.json.encode(starts).decode(), msgspec.json.encode(key_ids).decode()),
        )
        return [Usage(*row) for row in rows]

    async def busiest(self, *, interval: Interval, since: int, limit: int, after: str = "") -> list[KeyTotal]:
        table, column = USAGE_TABLES[interval]
        # The plus keeps SQLite from walking through all of the index by key for the sake of its order.
        rows = await self._rows_aside(
            "WITH totals AS (SELECT key_id, sum(count) AS requests,"
            "  coalesce(sum(count) FILTER (WHERE answer = 'refused'), 0) AS refused,"
            "  coalesce(sum(count) FILTER (WHERE answer = 'banned'), 0) AS banned"
            f" FROM {table} WHERE {column} >= ? GROUP BY +key_id)"
            " SELECT key_id, requests, refused, banned FROM totals WHERE ?2 = ''"
            " OR (requests, key_id) < (SELECT requests, key_id FROM totals WHERE key_id = ?2)"
            " ORDER BY requests DESC, key_id DESC LIMIT ?3",
            (since, after, limit),
        )
        return [KeyTotal(*row) for row in rows]

    async def total_usage(self, *, interval: Literal[60, 3600], since: int) -> list[TotalUsage]:
        rows = self._rows(
            "SELECT start, answer, count FROM traffic WHERE step = ? AND start >= ? ORDER BY start", (interval, since)
        )
        return [TotalUsage(*row) for row in rows]


def _expire(connection: apsw.Connection, newest: int) -> None:
    for table, row, old, kept in EXPIRING:
        connection.execute(
            f"DELETE FROM {table} WHERE ({row}) IN"
            f" (SELECT {row} FROM {table} WHERE {old} ? ORDER BY {row} LIMIT {EXPIRE_MAX})",
            (newest - kept,),
        )
