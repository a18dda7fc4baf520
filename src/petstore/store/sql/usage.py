"""Usage of keys by minute, hour and day, with and without the operation, and of all keys together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from petstore.operations import OperationName
from petstore.store.schema import TABLES
from petstore.store.sql import Database, ForEachRow, Statement, Transaction, steps
from petstore.usage import (
    ANONYMOUS,
    DAY,
    END_OF_TIME,
    HOUR,
    MINUTE,
    MINUTES_KEPT,
    RECENT_ERRORS,
    TOTAL_MINUTES_KEPT,
    AdmissionTotal,
    Interval,
    KeyTotal,
    OperationUsage,
    RecentError,
    TotalUsage,
    Usage,
)

# The seconds of an interval → its table, and the column with the start of the interval.
TABLE_OF: dict[Interval, tuple[str, str]] = {
    MINUTE: ("usage_minutes", "minute"),
    HOUR: ("usage", "hour"),
    DAY: ("usage_days", "day"),
}
_KEY_OF = {table.name: ", ".join(table.key) for table in TABLES}
# What is deleted by age: the table, which rows, and their age in seconds; None: the operator chooses it.
EXPIRING = (
    ("usage_minutes", "minute <", MINUTES_KEPT),
    ("usage", "hour <", None),
    ("usage_by_operation", "seconds = 60 AND start <", MINUTES_KEPT),
    ("usage_by_operation", "seconds = 3600 AND start <", None),
    ("traffic", "step = 60 AND start <", TOTAL_MINUTES_KEPT),
)
EXPIRE_MAX = 500  # rows deleted in one transaction, so that creates do not wait long for the write lock


class SqlUsage(Database):
    """See `UsageStore` for what each method does."""

    async def add_usage(self, rows: Sequence[OperationUsage], last_used: dict[str, float]) -> None:
        if rows or last_used:
            await self._run(self._add_usage(rows, last_used), timeout_seconds=self.usage_timeout)

    async def add_admissions(self, totals: Sequence[AdmissionTotal], at: int, *, late: bool = False) -> None:
        # First without a lock: most totals have not grown since.
        counted = await self._fetch(
            f"SELECT key_id, epoch, operation, total FROM {self.schema}.counted_admissions WHERE key_id = ANY($1)",
            sorted({total.key_id for total in totals}),
        )
        known = {tuple(cell): total for *cell, total in counted}
        grown = [each for each in totals if each.total > known.get((each.key_id, each.epoch, each.operation), 0)]
        if grown:
            await self._run(self._add_admissions(grown, at, late=late), timeout_seconds=self.usage_timeout)

    def _add_admissions(self, totals: Sequence[AdmissionTotal], at: int, *, late: bool) -> Transaction[None]:
        given: dict[tuple[str, int, str], int] = {}
        for _, key_id, operation, epoch, total in totals:
            given[key_id, epoch, operation] = max(total, given.get((key_id, epoch, operation), 0))
        # Rows are inserted first, and in order, so that two collectors wait for each other also for a new total.
        yield ForEachRow(
            f"INSERT INTO {self.schema}.counted_admissions (key_id, epoch, operation, total) VALUES ($1, $2, $3, 0)"
            " ON CONFLICT DO NOTHING",
            sorted(given),
        )
        counted = yield Statement(
            f"SELECT key_id, epoch, operation, total FROM {self.schema}.counted_admissions WHERE key_id = ANY($1)"
            f" ORDER BY key_id, epoch, operation {self.for_update}",
            (sorted({total.key_id for total in totals}),),
        )
        grown = {
            (key_id, epoch, operation): given[key_id, epoch, operation] - total
            for key_id, epoch, operation, total in counted
            if given.get((key_id, epoch, operation), 0) > total
        }
        if not grown:
            return
        yield ForEachRow(
            f"UPDATE {self.schema}.counted_admissions SET total = $1"
            " WHERE key_id = $2 AND epoch = $3 AND operation = $4",
            [(given[cell], *cell) for cell in grown],
        )
        yield from self._add_usage(
            [OperationUsage(key_id, at, "ok", n, operation) for (key_id, _, operation), n in grown.items()],
            {key_id: float(at) for key_id, _, _ in grown} if late else {},
        )

    def _add_usage(self, rows: Sequence[OperationUsage], last_used: dict[str, float]) -> Transaction[None]:
        of_keys = [row for row in rows if row.key_id != ANONYMOUS]
        for interval, (table, _) in TABLE_OF.items():
            starts = [(_floor(row.start, interval), row) for row in of_keys]
            yield self._add_counts(table, ((start, row.key_id, row.response, row.requests) for start, row in starts))
            yield self._add_counts(
                "usage_by_operation",
                ((interval, start, row.key_id, row.operation, row.response, row.requests) for start, row in starts),
            )
        for interval in (MINUTE, HOUR):
            totals = ((interval, _floor(row.start, interval), row.response, row.requests) for row in rows)
            yield self._add_counts("traffic", totals)
        yield ForEachRow(
            f"UPDATE {self.schema}.keys SET last_used = $1 WHERE id = $2 AND coalesce(last_used, 0) < $1",
            [(at, key_id) for key_id, at in sorted(last_used.items())],
        )
        if rows:
            yield from self._delete_expired(max(row.start for row in rows))

    def _delete_expired(self, newest: int) -> Transaction[None]:
        for table, old, kept in EXPIRING:
            columns = _KEY_OF[table]
            yield Statement(
                f"DELETE FROM {self.schema}.{table} WHERE ({columns}) IN (SELECT {columns} FROM {self.schema}.{table}"
                f" WHERE {old} $1 ORDER BY {columns} LIMIT {EXPIRE_MAX} {self.skip_locked})",
                (newest - (self.limits.usage_days * DAY if kept is None else kept),),
            )

    def _add_counts(self, table: str, rows: Iterable[tuple[Any, ...]]) -> ForEachRow:
        """Rows end with a count. They are sorted, because writers that lock rows in one order cannot deadlock."""
        counts: Counter[tuple[Any, ...]] = Counter()
        for *cell, count in rows:
            counts[tuple(cell)] += count
        key = _KEY_OF[table]
        places = ", ".join(f"${place}" for place in range(1, key.count(",") + 3))
        return ForEachRow(
            f"INSERT INTO {self.schema}.{table} AS t ({key}, count) VALUES ({places})"
            f" ON CONFLICT ({key}) DO UPDATE SET count = t.count + excluded.count",
            sorted((*cell, count) for cell, count in counts.items()),
        )

    async def add_errors(self, errors: Sequence[RecentError]) -> None:
        if not errors:
            return
        table = f"{self.schema}.recent_errors"
        insert = ForEachRow(
            f"INSERT INTO {table} (key_id, at, request_id, operation, status) VALUES ($1, $2, $3, $4, $5)"
            " ON CONFLICT DO NOTHING",
            sorted(errors),
        )
        keep_newest = Statement(
            f"DELETE FROM {table} AS r WHERE key_id = ANY($1) AND at < (SELECT min(at) FROM"
            f" (SELECT at FROM {table} WHERE key_id = r.key_id ORDER BY at DESC LIMIT {RECENT_ERRORS}) AS newest)",
            (sorted({error.key_id for error in errors}),),
        )
        await self._run(steps(insert, keep_newest), timeout_seconds=self.usage_timeout)

    async def recent_errors(self, key_id: str) -> list[RecentError]:
        rows = await self._fetch(
            f"SELECT key_id, at, request_id, operation, status FROM {self.schema}.recent_errors WHERE key_id = $1"
            f" ORDER BY at DESC, request_id LIMIT {RECENT_ERRORS}",
            key_id,
        )
        return [RecentError(*row) for row in rows]

    async def usage_of(
        self, key_ids: Sequence[str], interval: Interval, starts: Sequence[int], operation: OperationName | None = None
    ) -> list[Usage]:
        table, start, condition, values = self._source(interval, operation, 3)
        rows = await self._fetch(
            f"SELECT key_id, {start}, answer, count FROM {table}"
            f" WHERE {start} = ANY($1) AND key_id = ANY($2) AND {condition}",
            list(starts), list(key_ids), *values,
        )  # fmt: skip
        return [Usage(*row) for row in rows]

    async def busiest(
        self,
        *,
        interval: Interval,
        since: int,
        until: int = END_OF_TIME,
        limit: int,
        after: str = "",
        operation: OperationName | None = None,
    ) -> list[KeyTotal]:
        table, start, condition, values = self._source(interval, operation, 5)
        # The || '' keeps SQLite from walking through all of the index by key for the sake of its order.
        rows = await self._fetch_long(
            "WITH totals AS (SELECT key_id, CAST(sum(count) AS bigint) AS requests,"
            "  CAST(coalesce(sum(count) FILTER (WHERE answer = 'refused'), 0) AS bigint) AS refused,"
            "  CAST(coalesce(sum(count) FILTER (WHERE answer = 'banned'), 0) AS bigint) AS banned, max(start) AS last"
            f" FROM (SELECT key_id || '' AS key_id, {start} AS start, answer, count FROM {table}"
            f"  WHERE {start} >= $1 AND {start} < $4 AND {condition}) AS u GROUP BY key_id)"
            " SELECT key_id, requests, refused, banned, last FROM totals WHERE $2 = ''"
            " OR (requests, key_id) < (SELECT requests, key_id FROM totals WHERE key_id = $2)"
            " ORDER BY requests DESC, key_id DESC LIMIT $3",
            since, after, limit, until, *values,
        )  # fmt: skip
        return [KeyTotal(*row) for row in rows]

    async def total_usage(self, *, interval: Literal[60, 3600], since: int) -> list[TotalUsage]:
        rows = await self._fetch(
            f"SELECT start, answer, count FROM {self.schema}.traffic WHERE step = $1 AND start >= $2 ORDER BY start",
            interval, since,
        )  # fmt: skip
        return [TotalUsage(*row) for row in rows]

    def _source(
        self, interval: Interval, operation: OperationName | None, first: int
    ) -> tuple[str, str, str, list[Any]]:
        """A table, its column of starts, a condition, and the condition's values, which are bound from `first` on."""
        if operation is None:
            table, column = TABLE_OF[interval]
            return f"{self.schema}.{table}", column, "true", []
        condition = f"seconds = ${first} AND operation = ${first + 1}"
        return f"{self.schema}.usage_by_operation", "start", condition, [interval, operation]


def _floor(at: int, interval: int) -> int:
    return at // interval * interval
