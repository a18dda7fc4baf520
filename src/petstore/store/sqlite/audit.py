"""The audit log in SQLite."""

from petstore.audit import AuditEntry, FoundEntries
from petstore.store.schema import SEARCH_STEP, spellings
from petstore.store.sqlite.base import SqliteBase, any_in, write_entry

_ENTRIES = "SELECT id, at, actor, action, subject, detail FROM deeds WHERE id < ? ORDER BY id DESC LIMIT ?"
_NEWEST = 2**63 - 1


class SqliteAudit(SqliteBase):
    """See `AuditLog` for what each method promises."""

    async def record(self, entry: AuditEntry) -> None:
        await self._writer.call(lambda connection: write_entry(connection, entry))

    async def find_entries(
        self, *, before: int | None = None, limit: int = 100, actor: str = "", action: str = "", text: str = ""
    ) -> FoundEntries:
        start = _NEWEST if before is None else before
        who, what = spellings(actor), spellings(text)
        conditions = [
            f"({any_in(['actor'], who)})" if actor else "true",
            "action = ?" if action else "true",
            f"({any_in(['subject', 'detail'], what)})" if text else "true",
        ]
        rows = await self._rows_aside(
            f"SELECT * FROM ({_ENTRIES}) WHERE {' AND '.join(conditions)} LIMIT ?",
            (start, SEARCH_STEP, *who, *([action] if action else []), *what, *what, limit + 1),
        )
        found = [(number, AuditEntry(*rest)) for number, *rest in rows]
        if len(found) > limit:
            return FoundEntries(found[:limit], found[limit - 1][0], more=True)
        last = await self._rows_aside(f"{_ENTRIES} OFFSET {SEARCH_STEP - 1}", (start, 1))
        return FoundEntries(found, last[0][0] if last else 0, more=bool(last))
