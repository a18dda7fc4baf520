"""The audit log."""

from petstore.audit import AuditEntry, FoundEntries
from petstore.pets import INT64_MAX
from petstore.store.sql import Database, steps


class SqlAudit(Database):
    """See `AuditLog` for what each method does."""

    async def record(self, entry: AuditEntry) -> None:
        await self._run(steps(self._record(entry)))

    async def find_entries(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        actor: str = "",
        action: str = "",
        subject: str = "",
        text: str = "",
    ) -> FoundEntries:
        entries = (
            f"SELECT id, at, actor, action, subject, detail FROM {self.schema}.deeds"
            " WHERE id < $1 ORDER BY id DESC LIMIT $2"
        )
        start = INT64_MAX if before is None else before
        step = self.limits.search_step
        values = [start, step, action, limit + 1, subject]
        by_actor = self._contains_text(["actor"], actor, values)
        by_text = self._contains_text(["subject", "detail"], text, values)
        rows = await self._fetch_long(
            f"SELECT * FROM ({entries}) AS e WHERE ($3 = '' OR action = $3) AND ($5 = '' OR subject = $5)"
            f" AND {by_actor} AND {by_text} LIMIT $4",
            *values,
        )
        found = [(number, AuditEntry(*rest)) for number, *rest in rows]
        if len(found) > limit:
            return FoundEntries(found[:limit], found[limit - 1][0], more=True)
        last = await self._fetch_long(f"{entries} OFFSET $3", start, 1, step - 1)
        return FoundEntries(found, last[0][0] if last else 0, more=bool(last))
