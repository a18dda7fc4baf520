"""The store of many machines: PostgreSQL, one schema per environment.

Reads take a connection each; new animals go to the writer, which puts all that waits into one statement.
"""

from petstore.errors import Unavailable
from petstore.store.postgres.audit import PostgresAudit
from petstore.store.postgres.catalogue import PostgresCatalogue
from petstore.store.postgres.keys import PostgresKeys
from petstore.store.postgres.operators import PostgresOperators
from petstore.store.postgres.transfer import PostgresTransfer
from petstore.store.postgres.usage import PostgresUsage


class PostgresStore(PostgresCatalogue, PostgresKeys, PostgresAudit, PostgresUsage, PostgresOperators, PostgresTransfer):
    """See `Store` for what each method promises."""

    async def ping(self) -> None:
        """A read, and whether writes would be taken."""
        rows = await self._rows(
            f"SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,"
            f" (SELECT count(*) FROM (SELECT id FROM {self._schema}.pets LIMIT 1) AS one)"
        )
        if rows[0][0]:
            raise Unavailable("the store is read-only: a replica, or a primary that was demoted")

    async def close(self) -> None:
        await self._writer.close()
        await self._pool.close()
