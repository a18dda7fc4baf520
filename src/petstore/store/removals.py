"""Stores removals. An operator can remove several animals together, and restore some or all of them later.

Removed animals are moved from the table `pets` to `removed_pets`. When restored, they are moved back unchanged. See
docs/decisions/0022.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from petstore.audit import AuditEntry
from petstore.pets import Pet, PetQuery, Removal, Removed, RemovedPet, new_removal_id
from petstore.store.audit import add_entries
from petstore.store.database import OPERATOR_TIMEOUT, Database, Tx, Unchanged
from petstore.store.freshness import EDITED, NOTHING
from petstore.store.pets import Pets, entry_of, lock_pets
from petstore.store.schema import PET_FIELDS, PETS, REMOVALS
from petstore.wording import counted

IDS_MAX = 10  # the maximum number of ids listed in an audit entry

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

    # Changing

    async def remove(self, pet_ids: Sequence[int], entry: AuditEntry) -> Removed:
        """Removes the animals with these ids. Skips ids that do not exist.

        The ids of removed animals are never assigned again. A client that retries a create request with the same
        idempotency key still gets the original response, even if the animal has been removed.
        """
        removal_id = new_removal_id()

        async def transaction(tx: Tx) -> Removed:
            found = await lock_pets(tx, self._db, pet_ids)
            if not found:
                raise Unchanged(Removed(None, []))
            await tx.put(REMOVALS, [(removal_id, entry.at, entry.actor)])
            await self._remove(tx, removal_id, [pet.id for pet in found])
            await add_entries(tx, self._db.schema, _entry_of_removal(removal_id, found, entry))
            return Removed(removal_id, found)

        return await self._db.write(transaction, EDITED)

    async def remove_matching(
        self, query: PetQuery, up_to: int, entry: AuditEntry, removing: Callable[[int], None] = lambda removed: None
    ) -> Removal:
        """Removes the matching animals whose ids are at most `up_to`, and returns a record of the removal.

        Limits the number of animals per transaction, so that create requests never wait long. After each transaction,
        calls `removing` with the number of animals removed so far. If this call is interrupted, the animals removed so
        far stay removed, and an operator can restore them together.
        """
        removal_id = new_removal_id()

        async def begin(tx: Tx) -> None:
            await tx.put(REMOVALS, [(removal_id, entry.at, entry.actor)])
            await add_entries(tx, self._db.schema, msgspec.structs.replace(entry, subject=removal_id))

        async def chunk(tx: Tx, pet_ids: Sequence[int]) -> int:
            # An operator may have changed some of these animals since the search.
            found = await lock_pets(tx, self._db, pet_ids, unedited=query.unedited)
            await self._remove(tx, removal_id, [pet.id for pet in found])
            return len(found)

        await self._db.write(begin, NOTHING)
        removed, after, more = 0, 0, True
        while more and after < up_to:
            pets, after, more = await self._search(query, after=after, limit=self._db.bounds.import_chunk)
            pet_ids = [pet.id for pet in pets if pet.id <= up_to]
            if pet_ids:
                removed += await self._db.write(partial(chunk, pet_ids=pet_ids), EDITED, OPERATOR_TIMEOUT)
                removing(removed)
        return Removal(removal_id, entry.at, entry.actor, removed)

    async def restore(self, pet_ids: Sequence[int], entry: AuditEntry) -> list[Pet]:
        """Restores the removed animals with these ids, and returns them. Adds one audit entry per removal."""

        async def transaction(tx: Tx) -> list[Pet]:
            found = await self._lock(tx, "id = ANY($1) ORDER BY id", list(pet_ids))
            if not found:
                raise Unchanged([])
            await self._restore(tx, [pet.id for _, pet in found])
            by_removal: dict[str, list[Pet]] = {}
            for removal_id, pet in found:
                by_removal.setdefault(removal_id, []).append(pet)
            entries = (_entry_of_removal(removal_id, pets, entry) for removal_id, pets in by_removal.items())
            await add_entries(tx, self._db.schema, *entries)
            return [pet for _, pet in found]

        return await self._db.write(transaction, EDITED)

    async def restore_all(
        self, removal_id: str, entry: AuditEntry, restoring: Callable[[int], None] = lambda restored: None
    ) -> int:
        """Restores a removal's remaining animals, and returns how many it restored.

        Limits the number of animals per transaction, so that create requests never wait long. If a call is interrupted,
        calling it again restores the rest. Reports progress by calling `restoring` with the number restored so far.
        """
        step = self._db.bounds.import_chunk

        async def chunk(tx: Tx, is_first: bool) -> int:
            found = await self._lock(tx, "removal_id = $1 ORDER BY id LIMIT $2", removal_id, step)
            if not found:
                raise Unchanged(0)
            if is_first:
                count = f"SELECT count(*) FROM {self._removed} WHERE removal_id = $1"
                ((left,),) = await tx.execute(count, removal_id)
                several = msgspec.structs.replace(entry, subject=removal_id, detail=counted(left, "animal"))
                named = several if left > 1 else _entry_of_removal(removal_id, [found[0][1]], entry)
                await add_entries(tx, self._db.schema, named)
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


def _entry_of_removal(removal_id: str, pets: Sequence[Pet], entry: AuditEntry) -> AuditEntry:
    """Returns the audit entry for animals that are removed or restored together.

    The entry's subject is the removal's id. For a single animal, the subject is the animal's id, so that the entry
    appears in the animal's history.
    """
    if len(pets) == 1:
        one = entry_of(pets[0], entry)
        return msgspec.structs.replace(one, detail=f"{one.detail}, {removal_id}")
    ids = ", ".join(str(pet.id) for pet in pets[:IDS_MAX]) + (" …" if len(pets) > IDS_MAX else "")
    return msgspec.structs.replace(entry, subject=removal_id, detail=f"{counted(len(pets), 'animal')}: {ids}")
