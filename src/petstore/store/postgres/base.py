"""What the rooms of the PostgreSQL store share: the pool, the schema, and how a change is made and told."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import asyncpg

from petstore.errors import Unavailable
from petstore.health import Health
from petstore.keys import Environment
from petstore.ledger import Deed
from petstore.store import OnCommit, Subject
from petstore.store.postgres.pool import Connection, PostgresPool, Work
from petstore.store.tables import Row

T = TypeVar("T")


async def watched(health: Health, call: Awaitable[T]) -> T:
    """What the call returns, or raises; how it ends is noted."""
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


class PostgresBase:
    def __init__(self, pool: PostgresPool, environment: Environment, on_commit: OnCommit) -> None:
        self._pool = pool
        self._environment: Environment = environment
        self._on_commit = on_commit
        self._schema = schema_of(environment)
        self._reads = Health("store", environment, "read")
        self._writes = Health("store", environment, "write")

    async def _rows(self, sql: str, *values: Any) -> list[Row]:
        return await watched(self._reads, self._pool.run(lambda connection: connection.fetch(sql, *values)))

    async def _change(self, work: Work[T], subject: Subject) -> T:
        """A transaction of which readers must be told."""

        async def inside(connection: Connection) -> T:
            async with connection.transaction():
                try:
                    return await work(connection)
                except asyncpg.IntegrityConstraintViolationError as error:
                    raise Unavailable(f"the store refused a row: {error}") from error

        result = await watched(self._writes, self._pool.run(inside))
        await self._on_commit(subject)
        return result

    async def _record(self, connection: Connection, deed: Deed) -> None:
        await connection.execute(
            f"INSERT INTO {self._schema}.deeds (at, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5)",
            deed.at, deed.actor, deed.action, deed.subject, deed.detail,
        )  # fmt: skip
