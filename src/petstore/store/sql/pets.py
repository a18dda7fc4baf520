"""Animals: adding, searching and counting them, and the changes of operators.

Reads must also find the animals of an import that is visible and not moved into `pets` yet: docs/decisions/0014.
"""

from abc import abstractmethod
from asyncio import Future
from collections.abc import Sequence

import msgspec

from petstore.audit import AuditEntry
from petstore.errors import IdempotencyConflict
from petstore.pets import INT64_MAX, STATUSES, Added, Found, IdempotencyKey, NewPet, Pet, PetChanges, PetStatus
from petstore.store.schema import PET_COLUMNS, PETS, pets_of, spellings
from petstore.store.sql import Database, PutRows, Statement, T, Transaction

STATUS_LIST = ", ".join(f"'{status}'" for status in STATUSES)


class SqlPets(Database):
    """See `Catalogue` for what each method does. A backend adds `page` and `pet`, which requests wait for."""

    # The catalogue's version was raised after the commit of these: all animals up to an id, all changes up to a number.
    _announced_pet = 0
    _announced_change = 0

    @abstractmethod
    def _submit(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None) -> "Future[Added]":
        """Give a new animal to the writer. Raises what `Catalogue.add` raises, and so does the future."""

    # Reading

    async def search(self, text: str, *, after: int, limit: int, status: PetStatus | None) -> Found:
        return await self._search(text, after, limit, status, newest_first=False) if text else Found([], after, False)

    async def newest_pets(
        self, *, before: int | None = None, limit: int, status: PetStatus | None = None, text: str = ""
    ) -> Found:
        start = INT64_MAX if before is None else before
        return await self._search(text, start, limit, status, newest_first=True)

    async def _search(
        self, text: str, start: int, limit: int, status: PetStatus | None, *, newest_first: bool
    ) -> Found:
        if text and not spellings(text):
            return Found([], start, more=False)
        step = self.limits.search_step
        values = [start, step, status, limit + 1]
        # The search reads animals of every status, because rows in the order of their ids are the cheapest to read.
        ((moving,),) = await self._fetch(f"SELECT moving FROM {self.schema}.catalogue_changes")
        read = page_sql(self.schema, moving=bool(moving), newest_first=newest_first)
        fits = self._contains_text(["name"], text, values)
        rows = await self._fetch_long(
            f"SELECT * FROM ({read}) AS p WHERE status = coalesce($3, status) AND {fits} LIMIT $4", *values
        )
        if len(rows) > limit:
            return Found(pets_of(rows[:limit]), rows[limit - 1][0], more=True)
        last = await self._fetch_long(f"{read} OFFSET $3", start, 1, step - 1)
        return Found(pets_of(rows), last[0][0] if last else start, more=bool(last))

    async def count(self) -> dict[PetStatus, int]:
        found = dict.fromkeys(STATUSES, 0)
        moving = f"(SELECT id FROM {self.schema}.imports WHERE state = 'moving')"
        for status, count in await self._fetch_long(
            f"SELECT status, count(*) FROM {self.schema}.pets GROUP BY status UNION ALL"
            f" SELECT status, count(*) FROM {self.schema}.import_rows WHERE import_id = {moving} GROUP BY status"
        ):
            found[status] += count
        return found

    async def latest_change(self) -> int:
        number: int = (await self._fetch(f"SELECT number FROM {self.schema}.catalogue_changes"))[0][0]
        return number

    async def _announce(self) -> None:
        """Raise the catalogue's version, because a read found a change that this process has not announced.

        Another process may have committed the change a moment ago and not raised the version yet. One client would see
        the change here, and another client, served from a cache elsewhere, would not see it afterwards.
        """
        ((newest, change),) = await self._fetch(
            f"SELECT max(id), (SELECT number FROM {self.schema}.catalogue_changes) FROM"
            f" (SELECT max(id) AS id FROM {self.schema}.pets UNION ALL"
            f"  SELECT last_id FROM {self.schema}.imports WHERE state = 'moving') AS newest"
        )
        await self._on_commit("catalogue")
        self._announced_pet = max(self._announced_pet, newest or 0)
        self._announced_change = max(self._announced_change, change)

    # Changing

    async def add(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None = None) -> Added:
        if idempotency_key is None:
            added = await self._submit(new, now, None)
        else:
            name = (idempotency_key.key_id, idempotency_key.token)
            if name in self._in_flight:
                raise IdempotencyConflict(
                    "The first request with this Idempotency-Key is still running; retry shortly."
                )
            self._in_flight.add(name)
            try:
                added = await self._submit(new, now, idempotency_key)
            finally:
                self._in_flight.discard(name)
        if added.pet.id > self._announced_pet:
            if added.replayed:
                await self._announce()
            else:
                self._announced_pet = added.pet.id  # by the writer
        return added

    async def add_by_hand(self, new: NewPet, entry: AuditEntry) -> Pet:
        def transaction() -> Transaction[Pet]:
            yield from self._lock_pet_ids()
            pet = Pet((yield from self._draw_pet_ids(1)), new.name, new.category_id, new.status)
            yield self._insert([pet])
            yield self._record(_entry_of(pet, entry))
            return pet

        return await self._change(transaction())

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus, entry: AuditEntry) -> list[Pet]:
        def transaction() -> Transaction[list[Pet]]:
            found = yield from self._lock_pets(pet_ids)
            others = [pet for pet in found if pet.status != status]
            yield from self._update([pet.id for pet in others], PetChanges(status=status), entry.at)
            yield self._record(*(_entry_of(pet, entry, f"{pet.status} → {status}") for pet in others))
            return [msgspec.structs.replace(pet, status=status) for pet in found]

        return await self._change(transaction())

    async def update_pet(self, pet_id: int, changes: PetChanges, entry: AuditEntry) -> Pet | None:
        def transaction() -> Transaction[Pet | None]:
            found = yield from self._lock_pets([pet_id])
            if not found:
                return None
            (changed,) = yield from self._update([pet_id], changes, entry.at)
            yield self._record(_entry_of(changed, entry, entry.detail))
            return changed

        return await self._change(transaction())

    async def remove_pets(self, pet_ids: Sequence[int], entry: AuditEntry) -> list[Pet]:
        def transaction() -> Transaction[list[Pet]]:
            found = yield from self._lock_pets(pet_ids)
            ids = [pet.id for pet in found]
            yield self._keep_originals(ids, entry.at)
            yield Statement(f"DELETE FROM {self.schema}.pets WHERE id = ANY($1)", (ids,))
            yield self._record(*(_entry_of(pet, entry) for pet in found))
            return found

        return await self._change(transaction())

    async def restore_pets(self, pets: Sequence[Pet], entry: AuditEntry) -> list[Pet]:
        def transaction() -> Transaction[list[Pet]]:
            yield from self._lock_pet_ids()  # two undos of one removal
            rows = yield Statement(f"SELECT id FROM {self.schema}.pets WHERE id = ANY($1)", ([pet.id for pet in pets],))
            there = {row[0] for row in rows}
            missing = [pet for pet in pets if pet.id not in there]
            yield self._insert(missing)
            yield self._record(*(_entry_of(pet, entry) for pet in missing))
            return missing

        return await self._change(transaction())

    def _update(self, pet_ids: Sequence[int], changes: PetChanges, at: float) -> Transaction[list[Pet]]:
        yield self._keep_originals(pet_ids, at)
        changed = yield Statement(
            f"UPDATE {self.schema}.pets SET name = coalesce($2, name), category_id = coalesce($3, category_id),"
            f" status = coalesce($4, status) WHERE id = ANY($1) RETURNING {PET_COLUMNS}",
            (list(pet_ids), changes.name, changes.category_id, changes.status),
        )
        return pets_of(changed)

    def _lock_pets(self, pet_ids: Sequence[int]) -> Transaction[list[Pet]]:
        """Those of the animals that exist, all in `pets` from now on. No other transaction can change them."""
        rows = yield Statement(f"SELECT id, first_id FROM {self.schema}.imports WHERE state = 'moving'")
        for import_id, first_id in rows:
            moved = yield Statement(
                f"DELETE FROM {self.schema}.import_rows WHERE import_id = $1 AND place = ANY($2)"
                " AND status = ANY($3) RETURNING place, name, category_id, status",
                (import_id, [pet_id - first_id for pet_id in pet_ids], list(STATUSES)),
            )
            yield self._insert([Pet(first_id + place, *rest) for place, *rest in moved])
        # In the order of their ids: two operators at once cannot deadlock.
        found = yield Statement(
            f"SELECT {PET_COLUMNS} FROM {self.schema}.pets WHERE id = ANY($1) ORDER BY id {self.for_update}",
            (list(pet_ids),),
        )
        return pets_of(found)

    def _keep_originals(self, pet_ids: Sequence[int], at: float) -> Statement:
        """Keep what these animals were before their first change: repeated creates and `undo_import` need it."""
        return Statement(
            f"INSERT INTO {self.schema}.changed_pets (id, name, category_id, at)"
            f" SELECT id, name, category_id, CAST($2 AS double precision) FROM {self.schema}.pets WHERE id = ANY($1)"
            " ON CONFLICT (id) DO NOTHING",
            (list(pet_ids), at),
        )

    def _insert(self, pets: Sequence[Pet]) -> PutRows:
        return PutRows(self.schema, PETS, [(pet.id, pet.name, pet.category_id, pet.status) for pet in pets])

    async def _change(self, transaction: Transaction[T], timeout_seconds: float | None = None) -> T:
        """Run a transaction that changes the catalogue, and give it the next number."""

        def numbered() -> Transaction[tuple[T, int]]:
            result = yield from transaction
            # Last of all: a transaction that has this row waits for no other, so it cannot deadlock.
            rows = yield self._note_moving(also="number = number + 1,")
            return result, rows[0][0]

        result, number = await self._run(numbered(), "catalogue", timeout_seconds)
        self._announced_change = max(self._announced_change, number)
        return result


def _entry_of(pet: Pet, entry: AuditEntry, detail: str | None = None) -> AuditEntry:
    """The audit entry of one animal. Without another detail it has the animal's values."""
    values = f"{pet.name}, category {pet.category_id}, {pet.status}"
    return msgspec.structs.replace(entry, subject=str(pet.id), detail=values if detail is None else detail)


def page_sql(
    schema: str,
    *,
    by_status: bool = False,
    moving: bool = False,
    newest_first: bool = False,
    columns: str = PET_COLUMNS,
) -> str:
    """A statement for up to $2 animals above, or below, the id $1; `by_status`: only those with the status $3.

    `moving`: also the animals of a visible import that are not in `pets` yet. The statement reads them status by
    status, in the order of their primary key.
    """
    beyond, order = ("<", "DESC") if newest_first else (">", "ASC")
    condition = "status = $3 AND " if by_status else ""
    pets = f"SELECT {columns} FROM {schema}.pets WHERE {condition}id {beyond} $1 ORDER BY id {order} LIMIT $2"
    if not moving:
        return pets
    import_id, first_id = _moving_import(schema)
    rows = [
        f"SELECT {first_id} + place AS id, name, category_id, status FROM {schema}.import_rows"
        f" WHERE import_id = {import_id} AND status = {status} AND place {beyond} $1 - {first_id}"
        f" ORDER BY place {order} LIMIT $2"
        for status in (["$3"] if by_status else [f"'{status}'" for status in STATUSES])
    ]
    parts = (f"SELECT * FROM ({part}) AS part{place}" for place, part in enumerate([pets, *rows]))
    return f"SELECT {PET_COLUMNS} FROM ({' UNION ALL '.join(parts)}) AS page ORDER BY id {order} LIMIT $2"


def pet_sql(schema: str, *, moving: bool = False) -> str:
    """The same for the animal with the id $1."""
    pets = f"SELECT {PET_COLUMNS} FROM {schema}.pets WHERE id = $1"
    if not moving:
        return pets
    import_id, first_id = _moving_import(schema)
    return (
        f"{pets} UNION ALL SELECT {first_id} + place, name, category_id, status FROM {schema}.import_rows"
        f" WHERE import_id = {import_id} AND status IN ({STATUS_LIST}) AND place = $1 - {first_id}"
    )


def _moving_import(schema: str) -> tuple[str, str]:
    """Expressions for its id, and for the first id of its animals."""
    of_it = f"FROM {schema}.imports WHERE state = 'moving')"
    return f"(SELECT id {of_it}", f"(SELECT first_id {of_it}"
