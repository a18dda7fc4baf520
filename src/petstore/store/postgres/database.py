"""Runs the shared SQL in one schema of PostgreSQL."""

from collections.abc import Awaitable
from typing import Any, TypeVar

from petstore.errors import Unavailable
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.store import OnCommit, Subject
from petstore.store.limits import OPERATOR_TIMEOUT, StoreLimits
from petstore.store.postgres.pool import Connection, PostgresPool, long_transaction
from petstore.store.schema import Row
from petstore.store.sql import Database, ForEachRow, Statement, Step, T, Transaction

R = TypeVar("R")
SEQUENCES = {"pets": "pet_ids", "deeds": "deed_ids"}  # where the ids of a table come from


async def watched(health: Health, call: Awaitable[R]) -> R:
    """What the call returns, or raises; an outage is noted, and its end."""
    try:
        result = await call
    except Unavailable as outage:
        health.failed(outage)
        raise
    if health.down:
        health.worked()
    return result


def schema_of(environment: Environment) -> str:
    return f"petstore_{environment}"


class PostgresDatabase(Database):
    for_update = "FOR UPDATE"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    clock = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"

    def __init__(self, pool: PostgresPool, environment: Environment, on_commit: OnCommit, limits: StoreLimits) -> None:
        super().__init__(environment, on_commit, limits)
        self._pool = pool
        self.schema = schema_of(environment)
        self.usage_timeout = limits.request_timeout
        counters = (  # without sequences that have given out nothing
            f"SELECT '{name}'::text AS name, last_value AS last FROM {self.schema}.{sequence} WHERE is_called"
            for name, sequence in SEQUENCES.items()
        )
        self.counters = f"({' UNION ALL '.join(counters)})"
        self._read_health = Health("store", environment, "read")
        self._write_health = Health("store", environment, "write")

    async def _fetch(self, sql: str, *values: Any) -> list[Row]:
        return await watched(self._read_health, self._pool.run(lambda connection: connection.fetch(sql, *values)))

    async def _fetch_long(self, sql: str, *values: Any) -> list[Row]:
        async def work(connection: Connection) -> list[Row]:
            async with long_transaction(connection):
                rows: list[Row] = await connection.fetch(sql, *values)
                return rows

        return await self._pool.run(work, OPERATOR_TIMEOUT)

    async def _run(
        self, transaction: Transaction[T], changes: Subject | None = None, timeout_seconds: float | None = None
    ) -> T:
        is_long = timeout_seconds is not None and timeout_seconds > self.limits.request_timeout

        async def work(connection: Connection) -> T:
            async with long_transaction(connection) if is_long else connection.transaction():
                return await run(connection, transaction)

        result = await watched(self._write_health, self._pool.run(work, timeout_seconds))
        if changes is not None:
            await self._on_commit(changes)
        return result

    def _contains(self, column: str, place: int) -> str:
        # In the collation C only A to Z become lower case, as in SQLite.
        return f'strpos(lower({column} COLLATE "C"), ${place}) > 0'

    def _lock_pet_ids(self) -> Transaction[None]:
        yield Statement(f"SELECT {lock_pet_ids(self.schema)}")

    def _draw_pet_ids(self, count: int) -> Transaction[int]:
        sequence = f"'{self.schema}.pet_ids'"
        rows = yield Statement(f"SELECT setval({sequence}, nextval({sequence}) + $1 - 1)", (count,))
        return int(rows[0][0]) - count + 1

    def _raise_last_id(self, table: str, last: int) -> Transaction[None]:
        sequence = f"{self.schema}.{SEQUENCES[table]}"
        yield Statement(
            f"SELECT setval('{sequence}', $1) FROM {sequence} WHERE NOT is_called OR last_value < $1", (last,)
        )


def lock_pet_ids(schema: str) -> str:
    """An expression: waits for the lock under which ids of animals are drawn, and keeps it to the transaction's end."""
    return f"pg_advisory_xact_lock(hashtext('{schema}.pet_ids'))"


async def run(connection: Connection, transaction: Transaction[T]) -> T:
    """Execute the statements of a transaction that has begun. Raises what asyncpg raises."""
    try:
        step = next(transaction)
        while True:
            step = transaction.send(await _execute(connection, step))
    except StopIteration as end:
        result: T = end.value
        return result


async def _execute(connection: Connection, step: Step) -> list[Row]:
    rows: list[Row] = []
    if isinstance(step, Statement):
        rows = await connection.fetch(step.sql, *step.values)
    elif isinstance(step, ForEachRow):
        await connection.executemany(step.sql, step.rows)
    else:
        await connection.copy_records_to_table(
            step.table.name, schema_name=step.schema, columns=list(step.table.columns), records=step.rows
        )
    return rows
