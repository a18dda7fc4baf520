"""Creates both schemas and fills them in one transaction, for `petstore copy`."""

import contextlib
from collections.abc import AsyncIterator, Collection

import asyncpg

from petstore.changes import Change
from petstore.errors import OperatorError, Unavailable
from petstore.keys import ENVIRONMENTS
from petstore.store import StorePolicy
from petstore.store.postgres import migrations
from petstore.store.postgres.database import PostgresDatabase, schema_of
from petstore.store.postgres.pool import DRIVER, Connection, T, Work, is_gone, long_transaction, translating

SCHEMAS = [schema_of(each) for each in ENVIRONMENTS]


class _OneTransaction:
    """Implements `Connections` with one connection, in a transaction without timeouts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def run(self, work: Work[T], timeout_seconds: float | None = None) -> T:
        with translating():
            return await work(self._connection)

    async def close(self) -> None:
        """Does nothing, because `new_databases` closes the connection."""


@contextlib.asynccontextmanager
async def new_databases(url: str, policy: StorePolicy) -> AsyncIterator[list[PostgresDatabase]]:
    """Creates both schemas and yields their databases. Commits everything at the end of the block, or nothing.

    Nodes that start in the meantime wait for the end. Announces no changes. Raises OperatorError if a schema exists, or
    if the connection is lost during the commit. Raises Unavailable if the server does not respond.
    """
    with translating():
        connection = await asyncpg.connect(
            url,
            timeout=policy.bounds.timeouts.step,
            statement_cache_size=0 if policy.pgbouncer else 100,
            server_settings={"application_name": migrations.APPLICATION_NAME},
            target_session_attrs="read-write",
        )
    filled = False
    try:
        with translating():
            async with long_transaction(connection):
                await _create_schemas(connection)
                transaction = _OneTransaction(connection)
                yield [PostgresDatabase(transaction, each, _announce, policy.bounds) for each in ENVIRONMENTS]
                filled = True
    except Unavailable as error:
        if filled and isinstance(error.__cause__, Exception) and is_gone(error.__cause__):
            raise OperatorError(
                "the connection was lost during the commit, so it is unknown whether the copy is complete. Repeat the"
                " command. If it says that the target already contains data, the copy was complete"
            ) from error
        raise
    finally:
        with contextlib.suppress(*DRIVER):
            await connection.close(timeout=policy.bounds.timeouts.disconnect)


async def _create_schemas(connection: Connection) -> None:
    await migrations.check_encoding(connection)
    await migrations.lock(connection)
    for schema in SCHEMAS:
        if await migrations.exists(connection, schema):
            raise OperatorError(
                f"the target already contains data: the schema {schema} exists. Choose an empty database, or delete the"
                f" data with DROP SCHEMA {', '.join(SCHEMAS)} CASCADE"
            )
        await migrations.migrate(connection, schema)


async def _announce(changes: Collection[Change]) -> None:
    """Does nothing, because no one can see the changes yet."""
