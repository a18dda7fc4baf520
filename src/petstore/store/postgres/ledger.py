"""Deeds and usage in PostgreSQL."""

from collections.abc import Sequence

from petstore.ledger import Deed, Usage
from petstore.store.postgres.base import PostgresBase, watched
from petstore.store.postgres.pool import Connection

INT64_MAX = 2**63 - 1


class PostgresLedger(PostgresBase):
    """See `Ledger` for what each method promises."""

    async def record(self, deed: Deed) -> None:
        await self._pool.run(lambda connection: self._record(connection, deed))

    async def deeds(self, *, before: int | None = None, limit: int = 100) -> list[tuple[int, Deed]]:
        rows = await self._rows(
            f"SELECT id, at, actor, action, subject, detail FROM {self._schema}.deeds"
            " WHERE id < $1 ORDER BY id DESC LIMIT $2",
            INT64_MAX if before is None else before,
            limit,
        )
        return [(number, Deed(*rest)) for number, *rest in rows]

    async def add_usage(self, rows: Sequence[Usage], last_used: dict[str, float]) -> None:
        async def work(connection: Connection) -> None:
            async with connection.transaction():
                # In one order everywhere: two workers that write the same rows cannot deadlock.
                await connection.executemany(
                    f"INSERT INTO {self._schema}.usage AS u (key_id, hour, answer, count) VALUES ($1, $2, $3, $4)"
                    " ON CONFLICT (hour, key_id, answer) DO UPDATE SET count = u.count + excluded.count",
                    sorted(rows),
                )
                await connection.executemany(
                    f"UPDATE {self._schema}.keys SET last_used = greatest(coalesce(last_used, 0), $2) WHERE id = $1",
                    sorted(last_used.items()),
                )

        await watched(self._writes, self._pool.run(work))

    async def usage(self, *, since: int, key_id: str | None = None) -> list[Usage]:
        where, values = ("", (since,)) if key_id is None else (" AND key_id = $2", (since, key_id))
        rows = await self._rows(
            f"SELECT key_id, hour, answer, count FROM {self._schema}.usage WHERE hour >= $1{where}"
            " ORDER BY hour, key_id",
            *values,
        )
        return [Usage(*row) for row in rows]
