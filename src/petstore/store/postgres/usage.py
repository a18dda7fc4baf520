"""What keys used, in PostgreSQL: by minute, hour and day, and all of it together."""

from collections.abc import Sequence
from typing import Literal

from petstore.store.postgres.base import PostgresBase, watched
from petstore.store.postgres.pool import Connection
from petstore.store.schema import EXPIRE_MAX, EXPIRING, USAGE_TABLES, total_rows, usage_rows
from petstore.usage import Interval, KeyTotal, TotalUsage, Usage


class PostgresUsage(PostgresBase):
    """See `UsageStore` for what each method promises."""

    async def add_usage(self, rows: Sequence[Usage], last_used: dict[str, float]) -> None:
        if not rows:
            return
        newest = max(row.start for row in rows)

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                for interval, (table, column) in USAGE_TABLES.items():
                    await self._add(connection, table, column, usage_rows(rows, interval))
                await connection.execute(
                    f"INSERT INTO {self._schema}.traffic AS t (step, start, answer, count)"
                    " SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[])"
                    " ON CONFLICT (step, start, answer) DO UPDATE SET count = t.count + excluded.count",
                    *zip(*total_rows(rows), strict=True),
                )
                await connection.execute(
                    f"UPDATE {self._schema}.keys AS k SET last_used = greatest(coalesce(k.last_used, 0), seen.at)"
                    " FROM (SELECT k.id, seen.at FROM unnest($1::text[], $2::float8[]) AS seen (id, at)"
                    f"  JOIN {self._schema}.keys AS k USING (id) ORDER BY k.id FOR UPDATE OF k) AS seen"
                    " WHERE k.id = seen.id",
                    list(last_used), list(last_used.values()),
                )  # fmt: skip
                await self._expire(connection, newest)

        await watched(self._writes, self._pool.run(work))

    async def _add(self, connection: Connection, table: str, column: str, rows: list[Usage]) -> None:
        """One statement, however many keys there are."""
        await connection.execute(
            f"INSERT INTO {self._schema}.{table} AS u (key_id, {column}, answer, count)"
            " SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[])"
            f" ON CONFLICT ({column}, key_id, answer) DO UPDATE SET count = u.count + excluded.count",
            [row.key_id for row in rows], [row.start for row in rows],
            [row.response for row in rows], [row.requests for row in rows],
        )  # fmt: skip

    async def _expire(self, connection: Connection, newest: int) -> None:
        for table, row, old, kept in EXPIRING:
            await connection.execute(
                f"DELETE FROM {self._schema}.{table} WHERE ({row}) IN"
                f" (SELECT {row} FROM {self._schema}.{table} WHERE {old} $1 ORDER BY {row}"
                f" LIMIT {EXPIRE_MAX} FOR UPDATE SKIP LOCKED)",
                newest - kept,
            )

    async def usage_of(self, key_ids: Sequence[str], interval: Interval, starts: Sequence[int]) -> list[Usage]:
        table, column = USAGE_TABLES[interval]
        rows = await self._rows(
            f"SELECT key_id, {column}, answer, count FROM {self._schema}.{table}"
            f" WHERE {column} = ANY($1) AND key_id = ANY($2)",
            starts,
            key_ids,
        )
        return [Usage(*row) for row in rows]

    async def busiest(self, *, interval: Interval, since: int, limit: int, after: str = "") -> list[KeyTotal]:
        table, column = USAGE_TABLES[interval]
        rows = await self._rows_at_leisure(
            "WITH totals AS (SELECT key_id, sum(count)::bigint AS requests,"
            "  coalesce(sum(count) FILTER (WHERE answer = 'refused'), 0)::bigint AS refused,"
            "  coalesce(sum(count) FILTER (WHERE answer = 'banned'), 0)::bigint AS banned"
            f" FROM {self._schema}.{table} WHERE {column} >= $1 GROUP BY key_id)"
            " SELECT key_id, requests, refused, banned FROM totals WHERE $2 = ''"
            " OR (requests, key_id) < (SELECT requests, key_id FROM totals WHERE key_id = $2)"
            " ORDER BY requests DESC, key_id DESC LIMIT $3",
            since,
            after,
            limit,
        )
        return [KeyTotal(*row) for row in rows]

    async def total_usage(self, *, interval: Literal[60, 3600], since: int) -> list[TotalUsage]:
        rows = await self._rows(
            f"SELECT start, answer, count FROM {self._schema}.traffic WHERE step = $1 AND start >= $2 ORDER BY start",
            interval,
            since,
        )
        return [TotalUsage(*row) for row in rows]
