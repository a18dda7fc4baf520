"""The embedded store: one SQLite file per environment.

Reads run in the event loop's thread on a connection of their own, as prepared statements of some microseconds.
Writes go to the writer's thread. Other processes may write at the same time.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from petstore.keys import ENVIRONMENTS, Environment
from petstore.store import OnCommit, Store
from petstore.store.limits import StoreLimits
from petstore.store.sql.audit import SqlAudit
from petstore.store.sql.keys import SqlKeys
from petstore.store.sql.operators import SqlOperators
from petstore.store.sql.usage import SqlUsage
from petstore.store.sqlite.catalogue import SqliteCatalogue


class SqliteStore(SqliteCatalogue, SqlKeys, SqlAudit, SqlUsage, SqlOperators):
    """See `Store` for what each method does."""

    async def ping(self) -> None:
        self._rows("SELECT id FROM pets LIMIT 1", ())

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        await self._writer.close()
        self._reader.close()


def open_stores(
    data: Path, limits: StoreLimits, on_commit: Callable[[Environment], OnCommit]
) -> dict[Environment, Store]:
    """Raises OperatorError, and then leaves nothing open."""
    stores: dict[Environment, Store] = {}
    with ExitStack() as opened:
        for environment in ENVIRONMENTS:
            store = SqliteStore(data / f"{environment}.db", environment, on_commit(environment), limits)
            opened.callback(store.release)
            stores[environment] = store
        opened.pop_all()
    return stores
