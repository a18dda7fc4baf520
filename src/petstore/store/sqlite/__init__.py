"""The embedded store: one SQLite file per environment.

Reads run in the event loop's thread on a connection of their own, as prepared statements of some microseconds.
Writes go to the writer. Other processes may write at the same time.
"""

from petstore.store.sqlite.audit import SqliteAudit
from petstore.store.sqlite.catalogue import SqliteCatalogue
from petstore.store.sqlite.keys import SqliteKeys
from petstore.store.sqlite.operators import SqliteOperators
from petstore.store.sqlite.transfer import SqliteTransfer
from petstore.store.sqlite.usage import SqliteUsage


class SqliteStore(SqliteCatalogue, SqliteKeys, SqliteAudit, SqliteUsage, SqliteOperators, SqliteTransfer):
    """See `Store` for what each method promises."""

    async def ping(self) -> None:
        self._rows("SELECT id FROM pets LIMIT 1", ())

    async def close(self) -> None:
        await self._writer.close()
        self._read.close()
