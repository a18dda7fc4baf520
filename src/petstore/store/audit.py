"""Stores the audit log."""

import msgspec

from petstore.audit import AuditEntry, FoundEntries
from petstore.pets import INT64_MAX
from petstore.store.database import Database, Tx, contains_text
from petstore.store.freshness import NOTHING

_ENTRY_FIELDS = AuditEntry.__struct_fields__
_ENTRY = ", ".join(_ENTRY_FIELDS)


async def add_entries(tx: Tx, schema: str, *entries: AuditEntry) -> None:
    """Adds audit entries. The database assigns their numbers."""
    places = ", ".join(f"${place}" for place in range(1, len(_ENTRY_FIELDS) + 1))
    await tx.for_each(
        f"INSERT INTO {schema}.audit ({_ENTRY}) VALUES ({places})",
        [msgspec.structs.astuple(entry) for entry in entries],
    )


class Audit:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def record(self, entry: AuditEntry) -> None:
        await self._db.write(lambda tx: add_entries(tx, self._db.schema, entry), NOTHING)

    async def find(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        actor: str = "",
        action: str = "",
        subject: str = "",
        text: str = "",
    ) -> FoundEntries:
        """Returns the entries that match all arguments, newest first. Empty arguments match every entry.

        `action` and `subject` must match exactly. `actor` can match any part of the actor, and `text` any part of the
        subject or the detail. Each call searches at most `search_step` entries.
        """
        start = INT64_MAX if before is None else before
        step = self._db.bounds.search_step
        values = [start, step, action, limit + 1, subject]
        by_actor = contains_text(self._db, ["actor"], actor, values)
        by_text = contains_text(self._db, ["subject", "detail"], text, values)
        rows = await self._db.read_long(
            f"SELECT * FROM ({self._entries(_ENTRY)}) AS e WHERE ($3 = '' OR action = $3) AND ($5 = '' OR subject = $5)"
            f" AND {by_actor} AND {by_text} LIMIT $4",
            *values,
        )
        found = [(number, AuditEntry(*rest)) for number, *rest in rows]
        if len(found) > limit:
            return FoundEntries(found[:limit], found[limit - 1][0], more=True)
        return FoundEntries(found, *await self._end_of_step(start))

    async def history(self, subject: str) -> list[tuple[int, AuditEntry]]:
        """Returns all of a subject's entries with their numbers, newest first."""
        history: list[tuple[int, AuditEntry]] = []
        before, more = None, True
        while more:
            found, before, more = await self.find(before=before, subject=subject)
            history += found
        return history

    def _entries(self, columns: str) -> str:
        """Returns a query for up to $2 entries with numbers below $1, newest first."""
        return f"SELECT id, {columns} FROM {self._db.schema}.audit WHERE id < $1 ORDER BY id DESC LIMIT $2"

    async def _end_of_step(self, start: int) -> tuple[int, bool]:
        """Returns the entry number at which a search from `start` ended, and whether there may be older entries."""
        step = self._db.bounds.search_step
        last = await self._db.read_long(f"{self._entries('at')} OFFSET $3", start, 1, step - 1)
        return (last[0][0], True) if last else (0, False)
