"""Runs the shared SQL in a PostgreSQL schema."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from petstore.changes import Change
from petstore.errors import Unavailable
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store.database import OPERATOR_TIMEOUT, Bounds, T, Transaction, Tx, Unchanged
from petstore.store.freshness import Announce, Freshness, Numbers, numbering_sql, numbers_sql
from petstore.store.postgres.batched_creates import SEQUENCES, BatchedCreates, lock_pet_ids, watched
from petstore.store.postgres.pool import Connection, Connections, long_transaction
from petstore.store.schema import Row, Table


def schema_of(environment: Environment) -> str:
    return f"petstore_{environment}"


class PostgresDatabase:
    """Implements `Database` for PostgreSQL. See the protocol for a description of each method."""

    immediate = False

    for_update = "FOR UPDATE"
    skip_locked = "FOR UPDATE SKIP LOCKED"

    def __init__(self, pool: Connections, environment: Environment, announce: Announce, bounds: Bounds) -> None:
        self.environment: Environment = environment
        self.bounds = bounds
        self.schema = schema_of(environment)
        self.usage_timeout = bounds.timeouts.call
        self.freshness = Freshness(announce, self._numbers)
        counters = (  # omits sequences that have not assigned an id yet
            f"SELECT '{name}'::text AS name, last_value AS last FROM {self.schema}.{sequence} WHERE is_called"
            for name, sequence in SEQUENCES.items()
        )
        self.counters = f"({' UNION ALL '.join(counters)})"
        self._pool = pool
        self._numbers_sql = numbers_sql(self.schema)
        self._read_health = Health("store", environment, "read")
        self._write_health = Health("store", environment, "write")
        self._creates = BatchedCreates(pool, self.schema, environment, self._write_health, self.freshness, bounds)

    async def read(self, sql: str, *values: Any) -> list[Row]:
        return await watched(self._read_health, self._pool.run(lambda connection: connection.fetch(sql, *values)))

    async def read_long(self, sql: str, *values: Any) -> list[Row]:
        async def work(connection: Connection) -> list[Row]:
            async with long_transaction(connection):
                rows: list[Row] = await connection.fetch(sql, *values)
                return rows

        return await self._pool.run(work, OPERATOR_TIMEOUT)

    async def write(
        self, transaction: Transaction[T], changes: Collection[Change], timeout_seconds: float | None = None
    ) -> T:
        is_long = timeout_seconds is not None and timeout_seconds > self.bounds.timeouts.call

        async def work(connection: Connection) -> tuple[T, Numbers]:
            async with long_transaction(connection) if is_long else connection.transaction():
                tx = PostgresTx(connection, self.schema)
                result = await transaction(tx)
                if not changes:
                    return result, Numbers()
                if numbering := numbering_sql(self.schema, changes):
                    await tx.execute(numbering)
                (reached,) = await tx.execute(self._numbers_sql)
                return result, Numbers(*reached)

        result: T
        try:
            result, reached = await watched(self._write_health, self._pool.run(work, timeout_seconds))
        except Unchanged as unchanged:
            result, changes, reached = unchanged.result, (), Numbers()
        await self.freshness.announce(changes, reached)
        return result

    def add(
        self,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None,
        deadline: float | None,
        key_id: str,
    ) -> "asyncio.Future[Added]":
        return self._creates.add(new, now, idempotency_key, deadline, key_id)

    async def _numbers(self) -> Numbers:
        (found,) = await self.read(self._numbers_sql)
        return Numbers(*found)

    def contains(self, column: str, place: int) -> str:
        # In the C collation, lower() converts only the letters A to Z, as in SQLite.
        return f'strpos(lower({column} COLLATE "C"), ${place}) > 0'

    async def lock_pet_ids(self, tx: Tx) -> None:
        await tx.execute(f"SELECT {lock_pet_ids(self.schema)}")

    async def draw_pet_ids(self, tx: Tx, count: int) -> int:
        sequence = f"'{self.schema}.{SEQUENCES['pets']}'"
        rows = await tx.execute(f"SELECT setval({sequence}, nextval({sequence}) + $1 - 1)", count)
        return int(rows[0][0]) - count + 1

    async def raise_last_id(self, tx: Tx, table: str, last: int) -> None:
        sequence = f"{self.schema}.{SEQUENCES[table]}"
        await tx.execute(
            f"SELECT setval('{sequence}', $1) FROM {sequence} WHERE NOT is_called OR last_value < $1", last
        )

    def check_space(self) -> None:
        """Does nothing, because this process cannot see PostgreSQL's disk."""

    async def ping(self) -> None:
        rows = await self.read(
            f"SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,"
            f" (SELECT count(*) FROM (SELECT id FROM {self.schema}.pets LIMIT 1) AS one)"
        )
        if rows[0][0]:
            raise Unavailable("the store is read-only: a replica, or a primary that was demoted")

    async def drain(self) -> None:
        await self._creates.drain()

    async def close(self) -> None:
        await self._creates.drain()
        await self._pool.close()


class PostgresTx:
    """Implements `Tx` on a connection. The caller must begin and commit the transaction."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def execute(self, sql: str, *values: Any) -> list[Row]:
        rows: list[Row] = await self._connection.fetch(sql, *values)
        return rows

    async def for_each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        await self._connection.executemany(sql, rows)

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        await self._connection.copy_records_to_table(
            table.name, schema_name=self._schema, columns=list(table.columns), records=rows
        )
