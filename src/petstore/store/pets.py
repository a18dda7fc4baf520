"""Animals in the store: adding, reading, searching and counting them, and the changes of operators."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from petstore.audit import AuditEntry
from petstore.edits import difference_in_words, differences
from petstore.pets import (
    INT64_MAX,
    STATUSES,
    Added,
    Adder,
    Found,
    IdempotencyKey,
    Matching,
    NewPet,
    Origin,
    Page,
    Pet,
    PetChanges,
    PetQuery,
    PetStatus,
    changed_pet,
)
from petstore.store.adders import number_of
from petstore.store.audit import recorded
from petstore.store.database import Database, PutRows, Statement, Transaction, Unchanged, contains_text
from petstore.store.freshness import ADDED, EDITED
from petstore.store.schema import PET_COLUMNS, PET_FIELDS, PETS, Row, can_be_stored, new_pet_row


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

    async def search(self, query: PetQuery, *, after: int, limit: int) -> Found:
        """Animals above the id `after` that match, ascending. One call reads `search_step` at most."""
        return await self._search(query, after, limit, newest_first=False)

    async def newest(self, query: PetQuery, *, before: int | None = None, limit: int) -> Found:
        """The same from the highest id downwards: animals with an id below `before`."""
        return await self._search(query, INT64_MAX if before is None else before, limit, newest_first=True)

    async def _search(self, query: PetQuery, start: int, limit: int, *, newest_first: bool) -> Found:
        if not can_be_stored(query.text + query.added_by):
            return Found([], start, more=False)
        step = self._db.bounds.search_step
        values: list[Any] = [start, step, limit + 1]
        # The search reads animals of every status, because rows in the order of their ids are the cheapest to read.
        read = page_sql(self._db.schema, columns=", ".join(PETS.columns), newest_first=newest_first)
        fits = self._condition(query, values)
        rows = await self._db.read_long(f"SELECT {PET_COLUMNS} FROM ({read}) AS p WHERE {fits} LIMIT $3", *values)
        if len(rows) > limit:
            return Found([Pet(*row) for row in rows[:limit]], rows[limit - 1][0], more=True)
        last = await self._db.read_long(f"{read} OFFSET $3", start, 1, step - 1)
        return Found([Pet(*row) for row in rows], last[0][0] if last else start, more=bool(last))

    def _condition(self, query: PetQuery, values: list[Any]) -> str:
        """Adds what it compares with to the statement's values."""

        def bind(value: object) -> str:
            values.append(value)
            return f"${len(values)}"

        conditions = [contains_text(self._db, ["name"], query.text, values)]
        if query.status is not None:
            conditions.append(f"status = {bind(query.status)}")
        if query.added_by:
            named = f"SELECT id FROM {self._db.schema}.adders WHERE name = {bind(query.added_by)}"
            conditions.append(f"added_by IN ({named})")
        if query.since is not None:
            conditions.append(f"added_at >= {bind(math.ceil(query.since))}")
        if query.until is not None:
            conditions.append(f"added_at < {bind(math.ceil(query.until))}")
        if query.unedited:
            conditions.append("edited = 0")
        return " AND ".join(conditions)

    async def matching(self, query: PetQuery) -> Matching:
        """Reads all animals: not for a request's path."""
        values: list[Any] = []
        fits = self._condition(query, values)
        totals = "count(*), coalesce(sum(edited), 0), coalesce(max(id), 0)"
        (row,) = await self._db.read_long(f"SELECT {totals} FROM {self._db.schema}.pets WHERE {fits}", *values)
        return Matching(*row)

    async def is_adder(self, name: str) -> bool:
        """Whether a key, an import or an operator of this name has, or could have, added animals."""
        known = f"SELECT 1 FROM {self._db.schema}.adders WHERE name = $1"
        return can_be_stored(name) and bool(await self._db.read_long(known, name))

    async def origins(self, pet_ids: Sequence[int]) -> dict[int, Origin]:
        """Who added these animals, and when."""
        rows = await self._db.read_long(
            f"SELECT p.id, p.added_at, a.kind, a.name FROM {self._db.schema}.pets AS p"
            f" LEFT JOIN {self._db.schema}.adders AS a ON a.id = p.added_by WHERE p.id = ANY($1)",
            list(pet_ids),
        )
        return {pet_id: Origin(Adder(kind, name) if kind else None, at) for pet_id, at, kind, name in rows}

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
        key_id: str = "",
    ) -> Added:
        """Returns when the animal is on disk and visible to every reader. See `Database.add` for deadline and key.

        Raises IdempotencyMismatch when `idempotency_key` was used with another body.
        """
        added = await self._db.add(new, now, idempotency_key, deadline, key_id)
        if added.replayed and added.pet.id > self._freshness.announced.added:
            await self._freshness.check()
        return added

    async def add_by_hand(self, new: NewPet, entry: AuditEntry) -> Pet:
        """Add an animal together with an audit entry, which has its id as the subject and its values as the detail."""

        def transaction() -> Transaction[Pet]:
            (pet,) = yield from inserted_pets(self._db, [new], Adder("operator", entry.actor), entry.at)
            yield recorded(self._db.schema, entry_of(pet, entry))
            return pet

        return await self._db.write(transaction(), ADDED)

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus, entry: AuditEntry) -> list[Pet]:
        """Those of the animals that exist, with this status. Each that had another one gets an audit entry."""

        def transaction() -> Transaction[list[Pet]]:
            found = yield from locked_pets(self._db, pet_ids)
            others = [pet for pet in found if pet.status != status]
            if not others:
                raise Unchanged(found)
            yield self._update([pet.id for pet in others], {"status": status})
            yield recorded(self._db.schema, *(entry_of(pet, entry, f"{pet.status} → {status}") for pet in others))
            return [msgspec.structs.replace(pet, status=status) for pet in found]

        return await self._db.write(transaction(), EDITED)

    async def update(self, pet_id: int, changes: PetChanges, entry: AuditEntry, base: Pet | None = None) -> Pet | None:
        """Returns the changed animal, or None if no animal has this id.

        `base` is the animal as the operator saw it. Raises Conflict if the same member has been changed since, and
        InvalidBody; then nothing is written. The audit entry says what differs from the row that was locked.
        """

        def transaction() -> Transaction[Pet | None]:
            found = yield from locked_pets(self._db, [pet_id])
            if not found:
                raise Unchanged(None)
            (pet,) = found
            changed = changed_pet(pet, changes, base)
            if changed == pet:
                raise Unchanged(pet)
            yield self._update([pet_id], differences(pet, changed))
            yield recorded(self._db.schema, entry_of(changed, entry, difference_in_words(pet, changed)))
            return changed

        return await self._db.write(transaction(), EDITED)

    def _update(self, pet_ids: Sequence[int], new: Mapping[str, object]) -> Statement:
        assignments = "".join(f", {column} = ${place}" for place, column in enumerate(new, 2))
        update = f"UPDATE {self._db.schema}.pets SET edited = 1{assignments} WHERE id = ANY($1)"
        return Statement(update, (list(pet_ids), *new.values()))


def locked_pets(db: Database, pet_ids: Sequence[int], *, unedited: bool = False) -> Transaction[list[Pet]]:
    """Part of a transaction: those of the animals that exist. No other transaction can change them.

    `unedited`: only those that no operator has changed.
    """
    which = "id = ANY($1) AND edited = 0" if unedited else "id = ANY($1)"
    # In the order of their ids: two operators at once cannot deadlock.
    found = yield Statement(
        f"SELECT {PET_COLUMNS} FROM {db.schema}.pets WHERE {which} ORDER BY id {db.for_update}", (list(pet_ids),)
    )
    return [Pet(*row) for row in found]


def inserted_pets(db: Database, new: Sequence[NewPet], adder: Adder, now: float) -> Transaction[list[Pet]]:
    """Part of a transaction: give these animals new ids, which follow each other, and add them."""
    added_by = yield from number_of(db, adder)
    yield from db.lock_pet_ids()
    first = yield from db.draw_pet_ids(len(new))
    pets = [Pet(pet_id, *new_pet_row(each)) for pet_id, each in enumerate(new, first)]
    yield PutRows(db.schema, PETS, [(pet.id, *new_pet_row(pet), 0, added_by, int(now)) for pet in pets])
    return pets


def page_sql(schema: str, *, columns: str = PET_COLUMNS, by_status: bool = False, newest_first: bool = False) -> str:
    """The statement for up to $2 animals above, or below, the id $1; `by_status`: only those with the status $3."""
    beyond, order = ("<", "DESC") if newest_first else (">", "ASC")
    condition = "status = $3 AND " if by_status else ""
    return f"SELECT {columns} FROM {schema}.pets WHERE {condition}id {beyond} $1 ORDER BY id {order} LIMIT $2"


def _pets_of(rows: Sequence[Row]) -> list[Pet]:
    """From rows that end with a number."""
    return [Pet(*row[:-1]) for row in rows]


def entry_of(pet: Pet, entry: AuditEntry, detail: str | None = None) -> AuditEntry:
    """The audit entry of one animal. Without another detail it has the animal's values."""
    values = f"{pet.name}, category {pet.category_id}, {pet.status}"
    return msgspec.structs.replace(entry, subject=str(pet.id), detail=values if detail is None else detail)
