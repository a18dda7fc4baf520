"""Deeds and usage in SQLite."""

from collections.abc import Sequence

import apsw

from petstore.ledger import Deed, Usage
from petstore.store.sqlite.base import SqliteBase, write_deed


class SqliteLedger(SqliteBase):
    """See `Ledger` for what each method promises."""

    async def record(self, deed: Deed) -> None:
        await self._writer.call(lambda connection: write_deed(connection, deed))

    async def deeds(self, *, before: int | None = None, limit: int = 100) -> list[tuple[int, Deed]]:
        rows = self._rows(
            "SELECT id, at, actor, action, subject, detail FROM deeds WHERE id < ? ORDER BY id DESC LIMIT ?",
            (2**63 - 1 if before is None else before, limit),
        )
        return [(number, Deed(*rest)) for number, *rest in rows]

    async def add_usage(self, rows: Sequence[Usage], last_used: dict[str, float]) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.executemany(
                "INSERT INTO usage (key_id, hour, answer, count) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET count = count + excluded.count",
                rows,
            )
            connection.executemany(
                "UPDATE keys SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?",
                [(at, key_id) for key_id, at in last_used.items()],
            )

        await self._writer.call(work)

    async def usage(self, *, since: int, key_id: str | None = None) -> list[Usage]:
        where, bindings = ("", (since,)) if key_id is None else (" AND key_id = ?", (since, key_id))
        rows = self._rows(
            f"SELECT key_id, hour, answer, count FROM usage WHERE hour >= ?{where} ORDER BY hour, key_id", bindings
        )
        return [Usage(*row) for row in rows]
