"""The store of many machines: PostgreSQL, one schema per environment.

A read takes a connection of the pool. New animals go to the writer, which puts all that waits into one statement.
"""

from collections.abc import Callable

from petstore.errors import Unavailable
from petstore.keys import ENVIRONMENTS, Environment
from petstore.store import OnCommit, Store, StorePolicy
from petstore.store.postgres.catalogue import PostgresCatalogue
from petstore.store.postgres.database import schema_of
from petstore.store.postgres.pool import PostgresPool
from petstore.store.sql.audit import SqlAudit
from petstore.store.sql.keys import SqlKeys
from petstore.store.sql.operators import SqlOperators
from petstore.store.sql.usage import SqlUsage


class PostgresStore(PostgresCatalogue, SqlKeys, SqlAudit, SqlUsage, SqlOperators):
    """See `Store` for what each method does."""

    async def ping(self) -> None:
        """Reads, and asks whether writes would be taken."""
        rows = await self._fetch(
            f"SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,"
            f" (SELECT count(*) FROM (SELECT id FROM {self.schema}.pets LIMIT 1) AS one)"
        )
        if rows[0][0]:
            raise Unavailable("the store is read-only: a replica, or a primary that was demoted")

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        await self._writer.drain()
        await self._pool.close()


def open_stores(
    url: str, policy: StorePolicy, on_commit: Callable[[Environment], OnCommit]
) -> dict[Environment, Store]:
    """The stores share one pool, which connects when it is first needed."""
    pool = PostgresPool(url, [schema_of(each) for each in ENVIRONMENTS], policy)
    return {each: PostgresStore(pool, each, on_commit(each), policy.limits) for each in ENVIRONMENTS}
