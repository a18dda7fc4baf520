"""Stores the usage of each key and operation per minute, hour and day, and the totals across all keys."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from petstore.operations import OperationName
from petstore.store.database import Database, T, Transaction, Tx
from petstore.store.freshness import NOTHING
from petstore.store.schema import COUNTED_ADMISSIONS, USAGE, USAGE_TOTALS, Table
from petstore.store.schema import RECENT_ERRORS as ERRORS
from petstore.usage import (
    DAY,
    END_OF_TIME,
    HOUR,
    INTERVALS,
    MINUTE,
    MINUTES_KEPT,
    RECENT_ERRORS,
    TOTAL_MINUTES_KEPT,
    AdmissionTotal,
    Interval,
    KeyTotal,
    KeyUsage,
    OperationUsage,
    RecentError,
    TotalUsage,
)

# The usage rows that expire. Each item is a table, an interval, and the number of seconds to keep the rows, or None if
# `usage_days` applies.
EXPIRING: tuple[tuple[Table, Interval, int | None], ...] = (
    (USAGE, MINUTE, MINUTES_KEPT),
    (USAGE, HOUR, None),
    (USAGE_TOTALS, MINUTE, TOTAL_MINUTES_KEPT),
)
EXPIRE_MAX = 500  # rows deleted per statement; small, so that create requests do not wait long for the write lock


class Usage:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._usage = f"{db.schema}.{USAGE.name}"
        self._errors = f"{db.schema}.{ERRORS.name}"
        self._counted = f"{db.schema}.{COUNTED_ADMISSIONS.name}"

    async def add(
        self, rows: Sequence[OperationUsage], last_used: dict[str, float], anonymous: Sequence[TotalUsage] = ()
    ) -> None:
        """Adds each row to the minute, hour and day that contain its `start`, and deletes expired rows.

        `anonymous` contains the requests without a valid key, which are added only to the totals.
        """
        if rows or last_used or anonymous:
            await self._write(lambda tx: self._add(tx, rows, last_used, anonymous))

    async def add_admissions(self, totals: Sequence[AdmissionTotal], at: int, *, late: bool = False) -> None:
        """Compares each total with the stored one, and records the increase as usage at time `at`.

        If `late` is true, also records `at` as the time when the keys were last used, because a worker that was killed
        may not have done so.

        The same transaction stores the highest total seen in each epoch. This ensures that each admission is counted
        exactly once, even if several processes add the same totals repeatedly and in any order.
        """
        # Read without a lock first, because most totals have not grown since the last call.
        key_ids = sorted({total.key_id for total in totals})
        counted = await self._db.read(
            f"SELECT key_id, epoch, operation, total FROM {self._counted} WHERE key_id = ANY($1)", key_ids
        )
        known = {tuple(cell): total for *cell, total in counted}
        grown = [each for each in totals if each.total > known.get((each.key_id, each.epoch, each.operation), 0)]
        if grown:
            await self._write(lambda tx: self._add_admissions(tx, grown, at, late=late))

    async def _add_admissions(self, tx: Tx, totals: Sequence[AdmissionTotal], at: int, *, late: bool) -> None:
        given: dict[tuple[str, int, str], int] = {}
        for _, key_id, operation, epoch, total in totals:
            given[key_id, epoch, operation] = max(total, given.get((key_id, epoch, operation), 0))
        # Insert missing rows first, so that two processes cannot both add a new total. Sort them to prevent deadlocks.
        await tx.for_each(
            f"INSERT INTO {self._counted} (key_id, epoch, operation, total) VALUES ($1, $2, $3, 0)"
            " ON CONFLICT DO NOTHING",
            sorted(given),
        )
        counted = await tx.execute(
            f"SELECT key_id, epoch, operation, total FROM {self._counted} WHERE key_id = ANY($1)"
            f" ORDER BY key_id, epoch, operation {self._db.for_update}",
            sorted({total.key_id for total in totals}),
        )
        grown = {
            (key_id, epoch, operation): given[key_id, epoch, operation] - total
            for key_id, epoch, operation, total in counted
            if given.get((key_id, epoch, operation), 0) > total
        }
        if not grown:
            return
        await tx.for_each(
            f"UPDATE {self._counted} SET total = $1 WHERE key_id = $2 AND epoch = $3 AND operation = $4",
            [(given[cell], *cell) for cell in grown],
        )
        await self._add(
            tx,
            [OperationUsage(key_id, at, "admitted", n, operation) for (key_id, _, operation), n in grown.items()],
            {key_id: float(at) for key_id, _, _ in grown} if late else {},
        )

    async def _add(
        self, tx: Tx, rows: Sequence[OperationUsage], last_used: dict[str, float], anonymous: Sequence[TotalUsage] = ()
    ) -> None:
        for interval in INTERVALS:
            cells = (
                (interval, _floor(row.start, interval), row.key_id, row.operation, row.measure, row.requests)
                for row in rows
            )
            await self._add_counts(tx, USAGE, cells)
        counted = [*(TotalUsage(row.start, row.measure, row.requests) for row in rows), *anonymous]
        for interval in (MINUTE, HOUR):
            totals = ((interval, _floor(row.start, interval), row.measure, row.requests) for row in counted)
            await self._add_counts(tx, USAGE_TOTALS, totals)
        await tx.for_each(
            f"UPDATE {self._db.schema}.keys SET last_used = $1 WHERE id = $2 AND coalesce(last_used, 0) < $1",
            [(at, key_id) for key_id, at in sorted(last_used.items())],
        )
        if counted:
            await self._delete_expired(tx, max(row.start for row in counted))

    async def _delete_expired(self, tx: Tx, newest: int) -> None:
        for table, interval, kept in EXPIRING:
            name, key = f"{self._db.schema}.{table.name}", ", ".join(table.key)
            await tx.execute(
                f"DELETE FROM {name} WHERE ({key}) IN (SELECT {key} FROM {name} WHERE seconds = {interval}"
                f" AND start < $1 ORDER BY {key} LIMIT {EXPIRE_MAX} {self._db.skip_locked})",
                newest - (self._db.bounds.usage_days * DAY if kept is None else kept),
            )

    async def _add_counts(self, tx: Tx, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
        """Increases the stored counts. The last value in each row is the increase.

        Sorts the rows, so that writers cannot deadlock.
        """
        counts: Counter[tuple[Any, ...]] = Counter()
        for *cell, count in rows:
            counts[tuple(cell)] += count
        key = ", ".join(table.key)
        places = ", ".join(f"${place}" for place in range(1, len(table.key) + 2))
        await tx.for_each(
            f"INSERT INTO {self._db.schema}.{table.name} AS t ({key}, count) VALUES ({places})"
            f" ON CONFLICT ({key}) DO UPDATE SET count = t.count + excluded.count",
            sorted((*cell, count) for cell, count in counts.items()),
        )

    async def add_errors(self, errors: Sequence[RecentError]) -> None:
        """Adds errors, and keeps only the newest RECENT_ERRORS for each key."""
        if not errors:
            return
        columns, places = ", ".join(ERRORS.columns), ", ".join(f"${n}" for n in range(1, len(ERRORS.columns) + 1))

        async def transaction(tx: Tx) -> None:
            await tx.for_each(
                f"INSERT INTO {self._errors} ({columns}) VALUES ({places}) ON CONFLICT DO NOTHING", sorted(errors)
            )
            await tx.execute(
                f"DELETE FROM {self._errors} AS r WHERE key_id = ANY($1) AND at < (SELECT min(at) FROM (SELECT at FROM"
                f" {self._errors} WHERE key_id = r.key_id ORDER BY at DESC LIMIT {RECENT_ERRORS}) AS newest)",
                sorted({error.key_id for error in errors}),
            )

        await self._write(transaction)

    async def recent_errors(self, key_id: str) -> list[RecentError]:
        """Returns a key's recent errors, newest first."""
        rows = await self._db.read(
            f"SELECT {', '.join(ERRORS.columns)} FROM {self._errors} WHERE key_id = $1"
            f" ORDER BY at DESC, request_id LIMIT {RECENT_ERRORS}",
            key_id,
        )
        return [RecentError(*row) for row in rows]

    async def of_keys(
        self, key_ids: Sequence[str], interval: Interval, starts: Sequence[int], operation: OperationName | None = None
    ) -> list[KeyUsage]:
        """Returns these keys' usage in the intervals starting at `starts`, for one operation or (by default) all."""
        rows = await self._db.read(
            f"SELECT key_id, start, measure, CAST(sum(count) AS bigint) FROM {self._usage}"
            " WHERE seconds = $1 AND start = ANY($2) AND key_id = ANY($3) AND operation = coalesce($4, operation)"
            " GROUP BY key_id, start, measure",
            interval, list(starts), list(key_ids), operation,
        )  # fmt: skip
        return [KeyUsage(*row) for row in rows]

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
        """Returns the keys with the most requests from `since` (inclusive) to `until` (exclusive).

        `after` is the id of the last key on the previous page.
        """
        # `admitted` includes requests that failed. Without the || '', SQLite would scan the whole index to read the
        # keys in order.
        rows = await self._db.read_long(
            "WITH totals AS (SELECT key_id, CAST(sum(count) AS bigint) AS requests,"
            "  CAST(coalesce(sum(count) FILTER (WHERE measure = 'admitted'), 0) AS bigint) AS admitted,"
            "  CAST(coalesce(sum(count) FILTER (WHERE measure = 'refused'), 0) AS bigint) AS refused,"
            "  CAST(coalesce(sum(count) FILTER (WHERE measure = 'banned'), 0) AS bigint) AS banned,"
            "  max(start) AS last FROM (SELECT key_id || '' AS key_id, start, measure, count"
            f"  FROM {self._usage} WHERE seconds = $5 AND start >= $1 AND start < $4"
            "  AND measure IN ('admitted', 'refused', 'banned')"
            "  AND operation = coalesce($6, operation)) AS u GROUP BY key_id)"
            " SELECT key_id, admitted, refused, banned, last FROM totals WHERE $2 = ''"
            " OR (requests, key_id) < (SELECT requests, key_id FROM totals WHERE key_id = $2)"
            " ORDER BY requests DESC, key_id DESC LIMIT $3",
            since, after, limit, until, interval, operation,
        )  # fmt: skip
        return [KeyTotal(*row) for row in rows]

    async def admitted(self, *, interval: Interval, since: int, until: int) -> list[tuple[str, OperationName, int]]:
        """Counts the admitted requests per key and operation from `since` (inclusive) to `until` (exclusive)."""
        rows = await self._db.read_long(
            f"SELECT key_id, operation, CAST(sum(count) AS bigint) FROM {self._usage}"
            " WHERE seconds = $1 AND start >= $2 AND start < $3 AND measure = 'admitted' GROUP BY key_id, operation",
            interval, since, until,
        )  # fmt: skip
        return [(key_id, operation, requests) for key_id, operation, requests in rows]

    async def totals(self, *, interval: Literal[60, 3600], since: int) -> list[TotalUsage]:
        rows = await self._db.read(
            f"SELECT start, measure, count FROM {self._db.schema}.{USAGE_TOTALS.name}"
            " WHERE seconds = $1 AND start >= $2 ORDER BY start",
            interval, since,
        )  # fmt: skip
        return [TotalUsage(*row) for row in rows]

    async def _write(self, transaction: Transaction[T]) -> T:
        return await self._db.write(transaction, NOTHING, self._db.usage_timeout)


def _floor(at: int, interval: int) -> int:
    return at // interval * interval
