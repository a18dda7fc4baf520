"""The audit log in the store."""

from collections.abc import Sequence

from petstore.audit import AuditEntry, FoundEntries
from petstore.pets import INT64_MAX, Pet
from petstore.store.database import Database, ForEachRow, contains_text, steps
from petstore.store.freshness import NOTHING
from petstore.store.schema import AUDIT, NEW_PET_COLUMNS, NEW_PET_FIELDS, Row, new_pet_row

_ENTRY_FIELDS = AuditEntry.__struct_fields__
_ENTRY = ", ".join(_ENTRY_FIELDS)
_NO_PET: Row = (None,) * len(NEW_PET_FIELDS)


def recorded(schema: str, *entries: AuditEntry, removed: Sequence[Pet] = ()) -> ForEachRow:
    """Part of a transaction that does what the entries say. `removed`: the animal of each entry, with its values."""
    columns = AUDIT.columns[1:]  # the database gives out the ids
    places = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
    pets = [new_pet_row(pet) for pet in removed] or [_NO_PET] * len(entries)
    return ForEachRow(
        f"INSERT INTO {schema}.{AUDIT.name} ({', '.join(columns)}) VALUES ({places})",
        [(*(getattr(entry, field) for field in _ENTRY_FIELDS), *pet) for entry, pet in zip(entries, pets, strict=True)],
    )


class Audit:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def record(self, entry: AuditEntry) -> None:
        await self._db.write(steps(recorded(self._db.schema, entry)), NOTHING)

    async def removed(self, pet_ids: Sequence[int]) -> dict[int, Pet]:
        """Those of the animals that operators have removed, with their values at the last removal."""
        found: dict[int, Pet] = {}
        start, more, wanted = INT64_MAX, True, [str(pet_id) for pet_id in pet_ids]
        while more and len(found) < len(set(wanted)):
            entries, values = self._entries(f"subject, action, {NEW_PET_COLUMNS}"), (start, self._db.bounds.search_step)
            rows = await self._db.read_long(
                f"SELECT subject, {NEW_PET_COLUMNS} FROM ({entries}) AS e"
                " WHERE action = 'remove animal' AND subject = ANY($3) ORDER BY id DESC",
                *values, wanted,
            )  # fmt: skip
            for subject, *fields in rows:
                found.setdefault(int(subject), Pet(int(subject), *fields))
            start, more = await self._end_of_step(start)
        return found

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
        """Entries with this action and subject, whose actor contains `actor`, and whose subject or detail `text`.

        The newest first. One call searches at most `search_step` entries.
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

    def _entries(self, columns: str) -> str:
        """Up to $2 entries below the number $1, the newest first."""
        return f"SELECT id, {columns} FROM {self._db.schema}.audit WHERE id < $1 ORDER BY id DESC LIMIT $2"

    async def _end_of_step(self, start: int) -> tuple[int, bool]:
        """The number to which one step below `start` has searched, and whether there is more below it."""
        step = self._db.bounds.search_step
        last = await self._db.read_long(f"{self._entries('at')} OFFSET $3", start, 1, step - 1)
        return (last[0][0], True) if last else (0, False)
