"""What the rooms of the PostgreSQL store share: the pool, the schema, and how a change is made and told."""

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import asyncpg

from petstore.audit import AuditEntry
from petstore.errors import Unavailable
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.store import OnCommit, Subject
from petstore.store.postgres.pool import LONG, Connection, PostgresPool, Work, at_leisure
from petstore.store.schema import Row

T = TypeVar("T")

SEQUENCES = {"pets": "pet_ids", "deeds": "deed_ids"}  # where the ids of a table come from


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


def any_in(columns: Sequence[str], spellings: Sequence[str], first: int) -> str:
    """A condition: one of the texts is part of one of the columns. The spellings are bound once, from `first` on."""
    places = range(first, first + len(spellings))
    # In the collation C only A to Z become small, as in every other store.
    found = (f'strpos(lower({column} COLLATE "C"), ${place}) > 0' for column in columns for place in places)
    return f"({' OR '.join(found) or 'false'})"


class PostgresBase:
    def __init__(self, pool: PostgresPool, environment: Environment, on_commit: OnCommit) -> None:
        self._pool = pool
        self.environment: Environment = environment
        self._on_commit = on_commit
        self._schema = schema_of(environment)
        self._reads = Health("store", environment, "read")
        self._writes = Health("store", environment, "write")

    async def _rows(self, sql: str, *values: Any) -> list[Row]:
        return await watched(self._reads, self._pool.run(lambda connection: connection.fetch(sql, *values)))

    async def _rows_at_leisure(self, sql: str, *values: Any) -> list[Row]:
        """For reads that take the longer the more there is: an operator's, never a request's."""

        async def work(connection: Connection) -> list[Row]:
            async with at_leisure(connection):
                found: list[Row] = await connection.fetch(sql, *values)
                return found

        return await self._pool.run(work, LONG)

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

    async def _record(self, connection: Connection, entry: AuditEntry) -> None:
        await connection.execute(
            f"INSERT INTO {self._schema}.deeds (at, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5)",
            entry.at, entry.actor, entry.action, entry.subject, entry.detail,
        )  # fmt: skip
