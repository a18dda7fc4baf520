"""Animals in the store: adding, reading, searching and counting them, and the changes of operators."""

from collections.abc import Sequence

import msgspec

from petstore.audit import AuditEntry
from petstore.pets import INT64_MAX, STATUSES, Added, Found, IdempotencyKey, NewPet, Page, Pet, PetChanges, PetStatus
from petstore.store.audit import recorded
from petstore.store.database import Database, PutRows, Statement, Transaction, Unchanged, contains_text
from petstore.store.freshness import ADDED, EDITED
from petstore.store.schema import PET_COLUMNS, PET_FIELDS, PETS, Row, new_pet_row, spellings


class Pets:
    """Every change that `page` and `get` show was announced, also those of other processes: see `freshness.py`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._freshness = db.freshness
        numbered = f"{PET_COLUMNS}, (SELECT edited FROM {db.schema}.changes)"
        self._page_sql = page_sql(db.schema, columns=numbered)
        self._page_by_status_sql = page_sql(db.schema, columns=numbered, by_status=True)
        # A join with the one row of `changes` takes SQLite 0.8 µs less than a subquery, for one animal.
        members = ", ".join(f"pets.{field}" for field in PET_FIELDS)
        self._pet_sql = (
            f"SELECT {members}, changes.edited FROM {db.schema}.pets CROSS JOIN {db.schema}.changes WHERE pets.id = $1"
        )

    @property
    def immediate(self) -> bool:
        """Whether reads return without waiting for anything."""
        return self._db.immediate

    # Reading

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        """Animals with an id above `after`, ascending: the same cost wherever the page lies."""
        if status is None:
            rows = await self._db.read(self._page_sql, after, limit + 1)
        else:
            rows = await self._db.read(self._page_by_status_sql, after, limit + 1, status)
        # The last row is read even when it is not shown: it tells whether there is a next page.
        if not self._is_announced(rows):
            await self._freshness.check()
        return Page(_pets_of(rows[:limit]), len(rows) > limit)

    async def get(self, pet_id: int) -> Pet | None:
        rows = await self._db.read(self._pet_sql, pet_id)
        if not self._is_announced(rows):
            await self._freshness.check()
        return Pet(*rows[0][:-1]) if rows else None

    def _is_announced(self, rows: Sequence[Row]) -> bool:
        """Of rows in the order of their ids, each with the number of the latest edit at its end.

        Nothing is known of a read without rows. The numbers are then read afterwards, and cover whatever it has seen.
        """
        announced = self._freshness.announced
        return bool(rows) and rows[-1][0] <= announced.added and rows[0][-1] <= announced.edited

    async def search(self, text: str, *, after: int, limit: int, status: PetStatus | None) -> Found:
        """Animals above the id `after` whose name contains `text`, ascending. One call reads `search_step` at most."""
        return await self._search(text, after, limit, status, newest_first=False) if text else Found([], after, False)

    async def newest(
        self, *, before: int | None = None, limit: int, status: PetStatus | None = None, text: str = ""
    ) -> Found:
        """The same from the highest id downwards: animals with an id below `before`."""
        start = INT64_MAX if before is None else before
        return await self._search(text, start, limit, status, newest_first=True)

    async def _search(
        self, text: str, start: int, limit: int, status: PetStatus | None, *, newest_first: bool
    ) -> Found:
        if text and not spellings(text):
            return Found([], start, more=False)
        step = self._db.bounds.search_step
        values = [start, step, status, limit + 1]
        # The search reads animals of every status, because rows in the order of their ids are the cheapest to read.
        read = page_sql(self._db.schema, newest_first=newest_first)
        fits = contains_text(self._db, ["name"], text, values)
        rows = await self._db.read_long(
            f"SELECT * FROM ({read}) AS p WHERE status = coalesce($3, status) AND {fits} LIMIT $4", *values
        )
        if len(rows) > limit:
            return Found([Pet(*row) for row in rows[:limit]], rows[limit - 1][0], more=True)
        last = await self._db.read_long(f"{read} OFFSET $3", start, 1, step - 1)
        return Found([Pet(*row) for row in rows], last[0][0] if last else start, more=bool(last))

    async def count(self) -> dict[PetStatus, int]:
        """Takes the longer the more animals there are: not for a request's path."""
        rows = await self._db.read_long(f"SELECT status, count(*) FROM {self._db.schema}.pets GROUP BY status")
        return {**dict.fromkeys(STATUSES, 0), **dict(map(tuple, rows))}

    # Changing

    async def add(
        self,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None = None,
        deadline: float | None = None,
    ) -> Added:
        """Returns when the animal is on disk and visible to every reader. See `Database.add` for the deadline.

        Raises IdempotencyMismatch when `idempotency_key` was used with another body.
        """
        added = await self._db.add(new, now, idempotency_key, deadline)
        if added.replayed and added.pet.id > self._freshness.announced.added:
            await self._freshness.check()
        return added

    async def add_by_hand(self, new: NewPet, entry: AuditEntry) -> Pet:
        """Add an animal together with an audit entry, which has its id as the subject and its values as the detail."""

        def transaction() -> Transaction[Pet]:
            (pet,) = yield from added(self._db, [new])
            yield recorded(self._db.schema, _entry_of(pet, entry))
            return pet

        return await self._db.write(transaction(), ADDED)

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus, entry: AuditEntry) -> list[Pet]:
        """Those of the animals that exist, with this status. Each that had another one gets an audit entry."""

        def transaction() -> Transaction[list[Pet]]:
            found = yield from self._locked(pet_ids)
            others = [pet for pet in found if pet.status != status]
            if not others:
                raise Unchanged(found)
            yield from self._update([pet.id for pet in others], PetChanges(status=status))
            yield recorded(self._db.schema, *(_entry_of(pet, entry, f"{pet.status} → {status}") for pet in others))
            return [msgspec.structs.replace(pet, status=status) for pet in found]

        return await self._db.write(transaction(), EDITED)

    async def update(self, pet_id: int, changes: PetChanges, entry: AuditEntry) -> Pet | None:
        """The changed animal; None when there is none of this id."""

        def transaction() -> Transaction[Pet | None]:
            changed = yield from self._update([pet_id], changes)
            if not changed:
                raise Unchanged(None)
            yield recorded(self._db.schema, _entry_of(changed[0], entry, entry.detail))
            return changed[0]

        return await self._db.write(transaction(), EDITED)

    async def remove(self, pet_ids: Sequence[int], entry: AuditEntry) -> list[Pet]:
        """The removed animals: those that existed. Each gets an audit entry with its values.

        Their ids are never given out again. A repeated create of one is still answered with the original.
        """

        def transaction() -> Transaction[list[Pet]]:
            found = yield from self._locked(pet_ids)
            yield Statement(f"DELETE FROM {self._db.schema}.pets WHERE id = ANY($1)", ([pet.id for pet in found],))
            yield recorded(self._db.schema, *(_entry_of(pet, entry) for pet in found), removed=found)
            return found

        return await self._db.write(transaction(), EDITED)

    async def restore(self, pets: Sequence[Pet], entry: AuditEntry) -> list[Pet]:
        """Add removed animals again under their ids: those that were missing. Each gets an audit entry."""

        def transaction() -> Transaction[list[Pet]]:
            yield from self._db.lock_pet_ids()  # two undos of one removal
            ids = [pet.id for pet in pets]
            rows = yield Statement(f"SELECT id FROM {self._db.schema}.pets WHERE id = ANY($1)", (ids,))
            there = {row[0] for row in rows}
            missing = [pet for pet in pets if pet.id not in there]
            yield inserted(self._db.schema, missing, edited=True)
            yield recorded(self._db.schema, *(_entry_of(pet, entry) for pet in missing))
            return missing

        return await self._db.write(transaction(), EDITED)

    def _update(self, pet_ids: Sequence[int], changes: PetChanges) -> Transaction[list[Pet]]:
        given = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not None}
        assignments = "".join(f", {column} = ${place}" for place, column in enumerate(given, 2))
        changed = yield Statement(
            f"UPDATE {self._db.schema}.pets SET edited = 1{assignments} WHERE id = ANY($1) RETURNING {PET_COLUMNS}",
            (list(pet_ids), *given.values()),
        )
        return [Pet(*row) for row in changed]

    def _locked(self, pet_ids: Sequence[int]) -> Transaction[list[Pet]]:
        """Those of the animals that exist. No other transaction can change them."""
        # In the order of their ids: two operators at once cannot deadlock.
        found = yield Statement(
            f"SELECT {PET_COLUMNS} FROM {self._db.schema}.pets WHERE id = ANY($1) ORDER BY id {self._db.for_update}",
            (list(pet_ids),),
        )
        return [Pet(*row) for row in found]


def added(db: Database, new: Sequence[NewPet]) -> Transaction[list[Pet]]:
    """Part of a transaction: give these animals new ids, which follow each other, and add them."""
    yield from db.lock_pet_ids()
    first = yield from db.draw_pet_ids(len(new))
    pets = [Pet(pet_id, *new_pet_row(each)) for pet_id, each in enumerate(new, first)]
    yield inserted(db.schema, pets)
    return pets


def inserted(schema: str, pets: Sequence[Pet], *, edited: bool = False) -> PutRows:
    return PutRows(schema, PETS, [(pet.id, *new_pet_row(pet), int(edited)) for pet in pets])


def page_sql(schema: str, *, columns: str = PET_COLUMNS, by_status: bool = False, newest_first: bool = False) -> str:
    """The statement for up to $2 animals above, or below, the id $1; `by_status`: only those with the status $3."""
    beyond, order = ("<", "DESC") if newest_first else (">", "ASC")
    condition = "status = $3 AND " if by_status else ""
    return f"SELECT {columns} FROM {schema}.pets WHERE {condition}id {beyond} $1 ORDER BY id {order} LIMIT $2"


def _pets_of(rows: Sequence[Row]) -> list[Pet]:
    """From rows that end with a number."""
    return [Pet(*row[:-1]) for row in rows]


def _entry_of(pet: Pet, entry: AuditEntry, detail: str | None = None) -> AuditEntry:
    """The audit entry of one animal. Without another detail it has the animal's values."""
    values = f"{pet.name}, category {pet.category_id}, {pet.status}"
    return msgspec.structs.replace(entry, subject=str(pet.id), detail=values if detail is None else detail)
