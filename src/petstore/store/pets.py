"""Reads, searches, counts, adds and edits the animals in the store."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from petstore.audit import Actor
from petstore.edits import difference_in_words, differences
from petstore.errors import OperatorError
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
    check_selection,
    pet_in_words,
)
from petstore.store.adders import number_of
from petstore.store.audit import add_entries
from petstore.store.database import Database, Tx, Unchanged, contains_text
from petstore.store.freshness import ADDED, EDITED
from petstore.store.schema import PET_COLUMNS, PET_FIELDS, PETS, Row, can_be_stored, new_pet_row


class Pets:
    """The animals in one environment's store.

    `page` and `get` never expose a change that has not been announced, even one made by another process. See
    `freshness.py`.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._freshness = db.freshness
        numbered = f"{PET_COLUMNS}, (SELECT edited FROM {db.schema}.changes)"
        self._page_sql = page_sql(db.schema, columns=numbered)
        self._page_by_status_sql = page_sql(db.schema, columns=numbered, by_status=True)
        # When SQLite reads one animal, joining the single-row table `changes` is 0.8 µs faster than a subquery.
        members = ", ".join(f"pets.{field}" for field in PET_FIELDS)
        self._pet_sql = (
            f"SELECT {members}, changes.edited FROM {db.schema}.pets CROSS JOIN {db.schema}.changes WHERE pets.id = $1"
        )

    @property
    def immediate(self) -> bool:
        """Whether reads complete without yielding to the event loop."""
        return self._db.immediate

    # Reading

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        """Returns animals with an id above `after`, ordered by id. Later pages are as fast to read as the first."""
        if status is None:
            rows = await self._db.read(self._page_sql, after, limit + 1)
        else:
            rows = await self._db.read(self._page_by_status_sql, after, limit + 1, status)
        # The query reads one extra row to find out whether there is a next page.
        if not self._is_announced(rows):
            await self._freshness.check()
        return Page(_pets_of(rows[:limit]), len(rows) > limit)

    async def get(self, pet_id: int) -> Pet | None:
        rows = await self._db.read(self._pet_sql, pet_id)
        if not self._is_announced(rows):
            await self._freshness.check()
        return Pet(*rows[0][:-1]) if rows else None

    def _is_announced(self, rows: Sequence[Row]) -> bool:
        """Returns whether all changes visible in these rows have been announced.

        The rows must be ordered by id, and each row must end with the number of the latest edit. Returns False if there
        are no rows, because the number is then unknown.
        """
        announced = self._freshness.announced
        return bool(rows) and rows[-1][0] <= announced.added and rows[0][-1] <= announced.edited

    async def search(self, query: PetQuery, *, after: int, limit: int) -> Found:
        """Returns matching animals with an id above `after`, ordered by id. Reads at most `search_step` animals."""
        return await self._search(query, after, limit, newest_first=False)

    async def newest(self, query: PetQuery, *, before: int | None = None, limit: int) -> Found:
        """Returns matching animals with an id below `before`, highest id first."""
        return await self._search(query, INT64_MAX if before is None else before, limit, newest_first=True)

    async def _search(self, query: PetQuery, start: int, limit: int, *, newest_first: bool) -> Found:
        if not can_be_stored(query.text + query.added_by):
            return Found([], start, more=False)
        step = self._db.bounds.search_step
        values: list[Any] = [start, step, limit + 1]
        # The inner query ignores the status, because reading rows in id order is fastest.
        read = page_sql(self._db.schema, columns=", ".join(PETS.columns), newest_first=newest_first)
        fits = self._condition(query, values)
        rows = await self._db.read_long(f"SELECT {PET_COLUMNS} FROM ({read}) AS p WHERE {fits} LIMIT $3", *values)
        if len(rows) > limit:
            return Found([Pet(*row) for row in rows[:limit]], rows[limit - 1][0], more=True)
        last = await self._db.read_long(f"{read} OFFSET $3", start, 1, step - 1)
        return Found([Pet(*row) for row in rows], last[0][0] if last else start, more=bool(last))

    async def count_below(self, query: PetQuery, before: int) -> tuple[int, bool]:
        """Counts the matches among the next `search_step` animals with an id below `before`.

        Returns the number of matches, and whether there may be more animals to search.
        """
        step = self._db.bounds.search_step
        values: list[Any] = [before, step]
        read = page_sql(self._db.schema, columns=", ".join(PETS.columns), newest_first=True)
        fits = self._condition(query, values)
        counts = f"SELECT count(*), coalesce(sum(CASE WHEN {fits} THEN 1 ELSE 0 END), 0) FROM ({read}) AS p"
        ((read_count, matching),) = await self._db.read_long(counts, *values)
        return int(matching), read_count == step

    def _condition(self, query: PetQuery, values: list[Any]) -> str:
        """Returns the SQL condition for a query. Appends the condition's parameters to `values`."""

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
        """Returns how many animals match. Reads all animals, so it is too slow to run during a request."""
        values: list[Any] = []
        fits = self._condition(query, values)
        totals = "count(*), coalesce(sum(edited), 0), coalesce(max(id), 0)"
        (row,) = await self._db.read_long(f"SELECT {totals} FROM {self._db.schema}.pets WHERE {fits}", *values)
        return Matching(*row)

    async def check_adder(self, name: str) -> None:
        """Raises OperatorError unless `name` is a key's id, or identifies an import or operator that added animals."""
        known = f"SELECT 1 FROM {self._db.schema}.adders WHERE name = $1"
        if not (can_be_stored(name) and await self._db.read_long(known, name)):
            raise OperatorError(
                f"{name} is neither the id of a key nor an import or operator that has added animals to"
                f" {self._db.environment}"
            )

    async def origins(self, pet_ids: Sequence[int]) -> dict[int, Origin]:
        """Returns who added each of these animals and when, by animal id. Skips animals that do not exist."""
        rows = await self._db.read_long(
            f"SELECT p.id, p.added_at, a.kind, a.name FROM {self._db.schema}.pets AS p"
            f" LEFT JOIN {self._db.schema}.adders AS a ON a.id = p.added_by WHERE p.id = ANY($1)",
            list(pet_ids),
        )
        return {pet_id: Origin(Adder(kind, name) if kind else None, at) for pet_id, at, kind, name in rows}

    async def count(self) -> dict[PetStatus, int]:
        """Returns the number of animals by status. Reads all animals, so it is too slow to run during a request."""
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
        """Adds an animal, and returns once the animal is on disk and visible to every reader.

        See `Database.add` for the arguments. Raises IdempotencyMismatch if `idempotency_key` has been used with a
        different body.
        """
        added = await self._db.add(new, now, idempotency_key, deadline, key_id)
        if added.replayed and added.pet.id > self._freshness.announced.added:
            await self._freshness.check()
        return added

    # Acts. Each one is a single transaction.

    async def add_by_hand(self, new: NewPet, by: Actor) -> Pet:
        """Adds an animal for an operator. The audit entry records the animal's id and values."""

        async def transaction(tx: Tx) -> Pet:
            (pet,) = await insert_pets(tx, self._db, [new], Adder("operator", by.name), by.at)
            await add_entries(tx, self._db.schema, by.entry("add animal", str(pet.id), pet_in_words(pet)))
            return pet

        return await self._db.write(transaction, ADDED)

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus, by: Actor) -> list[Pet]:
        """Sets the status of the animals with these ids, and returns the animals. Skips ids that do not exist.

        Adds an audit entry for each animal whose status changes. Raises OperatorError if there are too many ids.
        """
        check_selection(pet_ids)

        async def transaction(tx: Tx) -> list[Pet]:
            found = await lock_pets(tx, self._db, pet_ids)
            others = [pet for pet in found if pet.status != status]
            if not others:
                raise Unchanged(found)
            await self._update(tx, [pet.id for pet in others], {"status": status})
            entries = (by.entry("set status", str(pet.id), f"{pet.status} → {status}") for pet in others)
            await add_entries(tx, self._db.schema, *entries)
            return [msgspec.structs.replace(pet, status=status) for pet in found]

        return await self._db.write(transaction, EDITED)

    async def update(self, pet_id: int, changes: PetChanges, by: Actor, base: Pet | None = None) -> Pet:
        """Changes an animal and returns it.

        `base` is the animal as the operator saw it. Raises Conflict if someone has changed the same field since then,
        and OperatorError if no animal has this id or a new value is invalid. The audit entry records the change.
        """

        async def transaction(tx: Tx) -> Pet:
            found = await lock_pets(tx, self._db, [pet_id])
            if not found:
                raise no_pet(self._db, pet_id)
            (pet,) = found
            changed = changed_pet(pet, changes, base)
            if changed == pet:
                raise Unchanged(pet)
            await self._update(tx, [pet_id], differences(pet, changed))
            detail = difference_in_words(pet, changed)
            await add_entries(tx, self._db.schema, by.entry("update animal", str(pet_id), detail))
            return changed

        return await self._db.write(transaction, EDITED)

    async def _update(self, tx: Tx, pet_ids: Sequence[int], new: Mapping[str, object]) -> None:
        assignments = "".join(f", {column} = ${place}" for place, column in enumerate(new, 2))
        update = f"UPDATE {self._db.schema}.pets SET edited = 1{assignments} WHERE id = ANY($1)"
        await tx.execute(update, list(pet_ids), *new.values())


def no_pet(db: Database, pet_id: int) -> OperatorError:
    return OperatorError(f"no animal has the id {pet_id} in {db.environment}")


async def lock_pets(tx: Tx, db: Database, pet_ids: Sequence[int], *, unedited: bool = False) -> list[Pet]:
    """Locks and returns the animals with these ids.

    Skips ids that do not exist. If `unedited` is true, also skips animals that an operator has changed.
    """
    which = "id = ANY($1) AND edited = 0" if unedited else "id = ANY($1)"
    # Lock in id order, so that two operators cannot deadlock.
    found = await tx.execute(
        f"SELECT {PET_COLUMNS} FROM {db.schema}.pets WHERE {which} ORDER BY id {db.for_update}", list(pet_ids)
    )
    return [Pet(*row) for row in found]


async def insert_pets(tx: Tx, db: Database, new: Sequence[NewPet], adder: Adder, now: float) -> list[Pet]:
    """Adds animals with new, consecutive ids, and returns them."""
    added_by = await number_of(tx, db.schema, adder)
    await db.lock_pet_ids(tx)
    first = await db.draw_pet_ids(tx, len(new))
    pets = [Pet(pet_id, *new_pet_row(each)) for pet_id, each in enumerate(new, first)]
    await tx.put(PETS, [(pet.id, *new_pet_row(pet), 0, added_by, int(now)) for pet in pets])
    return pets


def page_sql(schema: str, *, columns: str = PET_COLUMNS, by_status: bool = False, newest_first: bool = False) -> str:
    """Returns a query for up to $2 animals with ids above $1, or below $1 if `newest_first` is true.

    If `by_status` is true, the query returns only animals with the status $3.
    """
    beyond, order = ("<", "DESC") if newest_first else (">", "ASC")
    condition = "status = $3 AND " if by_status else ""
    return f"SELECT {columns} FROM {schema}.pets WHERE {condition}id {beyond} $1 ORDER BY id {order} LIMIT $2"


def _pets_of(rows: Sequence[Row]) -> list[Pet]:
    """Converts rows to animals. Ignores the last column, which contains the number of the latest edit."""
    return [Pet(*row[:-1]) for row in rows]
