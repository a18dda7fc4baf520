"""Stores removals. An operator can remove several animals together, and restore some or all of them later.

Removed animals are moved from the table `pets` to `removed_pets`. When restored, they are moved back unchanged. See
docs/decisions/0022.
"""

from collections.abc import Callable, Sequence
from functools import partial

from petstore.audit import Actor
from petstore.errors import OperatorError
from petstore.pets import Matching, Pet, PetQuery, added_in_words, check_selection
from petstore.removals import Removal, Removed, RemovedPet, new_removal_id, removal_entry
from petstore.store.audit import add_entries
from petstore.store.database import OPERATOR_TIMEOUT, Database, Tx, Unchanged
from petstore.store.freshness import EDITED, NOTHING
from petstore.store.pets import Pets, lock_pets, no_pet
from petstore.store.schema import PET_FIELDS, PETS, REMOVALS
from petstore.wording import counted

_COLUMNS = ", ".join(PETS.columns)


class Removals:
    def __init__(self, db: Database, pets: Pets) -> None:
        self._db = db
        self._search = pets.search
        self._pets = f"{db.schema}.pets"
        self._removed = f"{db.schema}.removed_pets"
        count = f"(SELECT count(*) FROM {self._removed} AS p WHERE p.removal_id = r.id)"
        self._removal = f"r.id, r.at, r.actor, {count}"

    # Reading

    async def find(self, removal_ids: Sequence[str]) -> dict[str, Removal]:
        """Returns the removals with these ids. Skips unknown ids."""
        rows = await self._db.read_long(
            f"SELECT {self._removal} FROM {self._db.schema}.removals AS r WHERE r.id = ANY($1)", list(removal_ids)
        )
        return {row[0]: Removal(*row) for row in rows}

    async def of_pets(self, pet_ids: Sequence[int]) -> dict[int, RemovedPet]:
        """Returns the removed animals with these ids, keyed by id."""
        columns = ", ".join(f"removed.{field}" for field in PET_FIELDS)
        rows = await self._db.read_long(
            f"SELECT {columns}, {self._removal} FROM {self._removed} AS removed"
            f" JOIN {self._db.schema}.removals AS r ON r.id = removed.removal_id WHERE removed.id = ANY($1)",
            list(pet_ids),
        )
        width = len(PET_FIELDS)
        return {row[0]: RemovedPet(Pet(*row[:width]), Removal(*row[width:])) for row in rows}

    # Acts. Removals by filter and restores of whole removals work in chunks, so that create requests never wait long.

    async def remove(self, pet_ids: Sequence[int], by: Actor) -> Removed:
        """Removes the animals with these ids. Skips ids that do not exist.

        The ids of removed animals are never assigned again. A client that retries a create request with the same
        idempotency key still gets the original response, even if the animal has been removed. Raises OperatorError if
        there are too many ids, or if there is only one and no animal has it.
        """
        check_selection(pet_ids)
        removal_id = new_removal_id()

        async def transaction(tx: Tx) -> Removed:
            found = await lock_pets(tx, self._db, pet_ids)
            if not found and len(pet_ids) == 1:
                raise no_pet(self._db, pet_ids[0])
            if not found:
                raise Unchanged(Removed(None, []))
            await tx.put(REMOVALS, [(removal_id, by.at, by.name)])
            await self._remove(tx, removal_id, [pet.id for pet in found])
            await add_entries(tx, self._db.schema, removal_entry(by, "remove animal", removal_id, found))
            return Removed(removal_id, found)

        return await self._db.write(transaction, EDITED)

    async def remove_matching(
        self, query: PetQuery, counted_before: Matching, by: Actor,
        removing: Callable[[int], None] = lambda removed: None,
    ) -> Removal:  # fmt: skip
        """Removes the animals that an operator has counted with `Pets.matching`, if they still match the query.

        Keeps animals that were added later. After each chunk, calls `removing` with the number of animals removed so
        far. If this call is interrupted, the animals removed so far stay removed, and an operator can restore them
        together.
        """
        removal_id = new_removal_id()
        detail = f"{counted(counted_before.total, 'animal')} {added_in_words(query)}"

        async def begin(tx: Tx) -> None:
            await tx.put(REMOVALS, [(removal_id, by.at, by.name)])
            await add_entries(tx, self._db.schema, by.entry("remove animal", removal_id, detail))

        async def chunk(tx: Tx, pet_ids: Sequence[int]) -> int:
            # An operator may have changed some of these animals since the search.
            found = await lock_pets(tx, self._db, pet_ids, unedited=query.unedited)
            await self._remove(tx, removal_id, [pet.id for pet in found])
            return len(found)

        await self._db.write(begin, NOTHING)
        removed, after, more = 0, 0, True
        while more and after < counted_before.last_id:
            pets, after, more = await self._search(query, after=after, limit=self._db.bounds.import_chunk)
            pet_ids = [pet.id for pet in pets if pet.id <= counted_before.last_id]
            if pet_ids:
                removed += await self._db.write(partial(chunk, pet_ids=pet_ids), EDITED, OPERATOR_TIMEOUT)
                removing(removed)
        return Removal(removal_id, by.at, by.name, removed)

    async def restore(self, pet_ids: Sequence[int], by: Actor) -> list[Pet]:
        """Restores the removed animals with these ids, and returns them. Adds one audit entry per removal.

        Raises OperatorError and restores nothing if there are too many ids, or if any animal cannot be restored.
        """
        check_selection(pet_ids)

        async def transaction(tx: Tx) -> list[Pet]:
            found = await self._lock(tx, "id = ANY($1) ORDER BY id", list(pet_ids))
            missing = [pet_id for pet_id in pet_ids if pet_id not in {pet.id for _, pet in found}]
            if missing:
                raise OperatorError(await self._why_not_restorable(tx, missing[0]))
            await self._restore(tx, [pet.id for _, pet in found])
            by_removal: dict[str, list[Pet]] = {}
            for removal_id, pet in found:
                by_removal.setdefault(removal_id, []).append(pet)
            entries = (removal_entry(by, "restore animal", each, pets) for each, pets in by_removal.items())
            await add_entries(tx, self._db.schema, *entries)
            return [pet for _, pet in found]

        return await self._db.write(transaction, EDITED)

    async def _why_not_restorable(self, tx: Tx, pet_id: int) -> str:
        environment = self._db.environment
        if await tx.execute(f"SELECT 1 FROM {self._pets} WHERE id = $1", pet_id):
            return f"animal {pet_id} has not been removed from {environment}"
        undone = await tx.execute(
            f"SELECT i.id, i.name FROM {self._db.schema}.imports AS i JOIN {self._db.schema}.import_chunks AS c"
            " ON c.import_id = i.id WHERE c.first_id <= $1 AND $1 < c.first_id + c.count"
            " AND i.state IN ('undoing', 'undone')",
            pet_id,
        )
        if undone:
            ((import_id, name),) = undone
            return f"animal {pet_id} was removed when {import_id} was undone; to get it back, import {name} again"
        return f"removed animal {pet_id} was not found in {environment}"

    async def restore_all(
        self, removal_id: str, by: Actor, restoring: Callable[[int], None] = lambda restored: None
    ) -> int:
        """Restores a removal's remaining animals, and returns how many it restored.

        The first chunk's transaction also adds the audit entry. After each chunk, calls `restoring` with the number of
        animals restored so far. If a call is interrupted, calling it again restores the rest. Raises OperatorError if
        there is no such removal, or if all of its animals have been restored.
        """
        step = self._db.bounds.import_chunk

        async def chunk(tx: Tx, is_first: bool) -> int:
            found = await self._lock(tx, "removal_id = $1 ORDER BY id LIMIT $2", removal_id, step)
            if not found and is_first:
                known = await tx.execute(f"SELECT 1 FROM {self._db.schema}.removals WHERE id = $1", removal_id)
                raise OperatorError(
                    f"all animals removed by {removal_id} have already been restored"
                    if known
                    else f"removal {removal_id} was not found in {self._db.environment}"
                )
            if not found:
                raise Unchanged(0)
            if is_first:
                count = f"SELECT count(*) FROM {self._removed} WHERE removal_id = $1"
                ((left,),) = await tx.execute(count, removal_id)
                several = by.entry("restore animal", removal_id, counted(left, "animal"))
                one = removal_entry(by, "restore animal", removal_id, [found[0][1]])
                await add_entries(tx, self._db.schema, several if left > 1 else one)
            await self._restore(tx, [pet.id for _, pet in found])
            return len(found)

        restored, count = 0, step
        while count == step:
            count = await self._db.write(partial(chunk, is_first=not restored), EDITED, OPERATOR_TIMEOUT)
            restored += count
            restoring(restored)
        return restored

    async def _remove(self, tx: Tx, removal_id: str, pet_ids: list[int]) -> None:
        """Removes animals that the transaction has locked."""
        move = (
            f"INSERT INTO {self._removed} ({_COLUMNS}, removal_id)"
            f" SELECT {_COLUMNS}, $2 FROM {self._pets} WHERE id = ANY($1)"
        )
        await tx.execute(move, pet_ids, removal_id)
        await tx.execute(f"DELETE FROM {self._pets} WHERE id = ANY($1)", pet_ids)

    async def _restore(self, tx: Tx, pet_ids: list[int]) -> None:
        """Restores removed animals that the transaction has locked."""
        move = f"INSERT INTO {self._pets} ({_COLUMNS}) SELECT {_COLUMNS} FROM {self._removed} WHERE id = ANY($1)"
        await tx.execute(move, pet_ids)
        await tx.execute(f"DELETE FROM {self._removed} WHERE id = ANY($1)", pet_ids)

    async def _lock(self, tx: Tx, which: str, *values: object) -> list[tuple[str, Pet]]:
        """Locks removed animals, and returns each one with the id of its removal."""
        columns = ", ".join(PET_FIELDS)
        rows = await tx.execute(
            f"SELECT removal_id, {columns} FROM {self._removed} WHERE {which} {self._db.for_update}", *values
        )
        return [(removal_id, Pet(*pet)) for removal_id, *pet in rows]
