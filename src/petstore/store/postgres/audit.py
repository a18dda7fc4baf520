"""The audit log in PostgreSQL."""

from petstore.audit import AuditEntry, FoundEntries
from petstore.store.postgres.base import PostgresBase, any_in
from petstore.store.schema import SEARCH_STEP, spellings

_NEWEST = 2**63 - 1


class PostgresAudit(PostgresBase):
    """See `AuditLog` for what each method promises."""

    async def record(self, entry: AuditEntry) -> None:
        await self._pool.run(lambda connection: self._record(connection, entry))

    async def find_entries(
        self, *, before: int | None = None, limit: int = 100, actor: str = "", action: str = "", text: str = ""
    ) -> FoundEntries:
        start = _NEWEST if before is None else before
        who, what = spellings(actor), spellings(text)
        conditions = [
            f"({any_in(['actor'], who, 4)})" if actor else "true",
            "($3 = '' OR action = $3)",
            f"({any_in(['subject', 'detail'], what, 4 + len(who))})" if text else "true",
        ]
        rows = await self._rows(
            f"SELECT * FROM ({self._entries_sql}) AS d WHERE {' AND '.join(conditions)} LIMIT {limit + 1}",
            start, SEARCH_STEP, action, *who, *what,
        )  # fmt: skip
        found = [(number, AuditEntry(*rest)) for number, *rest in rows]
        if len(found) > limit:
            return FoundEntries(found[:limit], found[limit - 1][0], more=True)
        last = await self._rows(f"{self._entries_sql} OFFSET {SEARCH_STEP - 1}", start, 1)
        return FoundEntries(found, last[0][0] if last else 0, more=bool(last))

    @property
    def _entries_sql(self) -> str:
        return (
            f"SELECT id, at, actor, action, subject, detail FROM {self._schema}.deeds"
            " WHERE id < $1 ORDER BY id DESC LIMIT $2"
        )
