"""Adds, changes, removes and restores animals."""

from collections.abc import Callable, Sequence

import msgspec

from petstore.admin.actor import Actor
from petstore.errors import InvalidBody, OperatorError
from petstore.pets import Matching, NewPet, Pet, PetChanges, PetQuery, PetStatus, Removal, Removed, new_pet
from petstore.store import Store
from petstore.wording import counted, when

PETS_MAX = 1_000  # animals per action


class PetActions:
    def __init__(self, store: Store, actor: Actor) -> None:
        self._store = store
        self._actor = actor

    async def add(self, new: NewPet) -> Pet:
        return await self._store.pets.add_by_hand(new, self._actor.new_entry("add animal", ""))

    async def update(self, pet_id: int, changes: PetChanges, base: Pet | None = None) -> Pet:
        """Changes an animal and returns it.

        `base` is the animal as the operator saw it. Raises Conflict if someone else has since changed the same field.
        """
        try:
            changed = await self._store.pets.update(pet_id, changes, self._actor.new_entry("update animal", ""), base)
        except InvalidBody as error:
            raise OperatorError(error.message) from None
        if changed is None:
            raise self._no_pet(pet_id)
        return changed

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus) -> list[Pet]:
        """Sets the status of the animals that exist, and returns them. Writes one audit entry per changed animal."""
        _check_count(pet_ids)
        return await self._store.pets.set_status(pet_ids, status, self._actor.new_entry("set status", ""))

    async def remove(self, pet_ids: Sequence[int]) -> Removed:
        """Removes animals. Ignores ids that do not exist.

        Raises OperatorError if there is only one id and no animal has it.
        """
        _check_count(pet_ids)
        if len(pet_ids) == 1 and await self._store.pets.get(pet_ids[0]) is None:
            raise self._no_pet(pet_ids[0])
        return await self._store.removals.remove(pet_ids, self._actor.new_entry("remove animal", ""))

    async def count_added(self, query: PetQuery) -> Matching:
        """Counts the animals that match a query. The query must include `added_by`."""
        await check_adder(self._store, query.added_by)
        return await self._store.pets.matching(query)

    async def remove_added(
        self, query: PetQuery, counted_before: Matching, removing: Callable[[int], None] = lambda removed: None
    ) -> Removal:
        """Removes the animals that `count_added` counted, if they still match the query. Keeps animals added later.

        Calls `removing` with the number of animals removed so far.
        """
        detail = f"{counted(counted_before.total, 'animal')} {added_in_words(query)}"
        entry = self._actor.new_entry("remove animal", "", detail)
        return await self._store.removals.remove_matching(query, counted_before.last_id, entry, removing)

    async def restore(self, pet_ids: Sequence[int]) -> list[Pet]:
        """Restores removed animals with their old values: all of them or, if any of them cannot be restored, none."""
        _check_count(pet_ids)
        removed = await self._store.removals.of_pets(pet_ids)
        for pet_id in pet_ids:
            if pet_id not in removed:
                raise OperatorError(await self._not_restorable(pet_id))
        return await self._store.removals.restore(pet_ids, self._actor.new_entry("restore animal", ""))

    async def restore_removal(self, removal_id: str, restoring: Callable[[int], None] = lambda restored: None) -> int:
        """Undoes a removal by restoring its animals, except those that have already been restored.

        Returns how many animals were restored. Calls `restoring` with the number of animals restored so far.
        """
        removal = (await self._store.removals.find([removal_id])).get(removal_id)
        if removal is None:
            raise OperatorError(f"removal {removal_id} was not found in {self._store.environment}")
        entry = self._actor.new_entry("restore animal", removal_id)
        restored = await self._store.removals.restore_all(removal_id, entry, restoring)
        if not restored:
            raise OperatorError(f"all animals removed by {removal_id} have already been restored")
        return restored

    async def _not_restorable(self, pet_id: int) -> str:
        if await self._store.pets.get(pet_id) is not None:
            return f"animal {pet_id} has not been removed from {self._store.environment}"
        by = await self._store.imports.of_pet(pet_id, self._actor.clock())
        if by is not None and by.state in ("undoing", "undone"):
            return f"animal {pet_id} was removed when {by.id} was undone; to get it back, import {by.name} again"
        return f"removed animal {pet_id} was not found in {self._store.environment}"

    def _no_pet(self, pet_id: int) -> OperatorError:
        return OperatorError(f"no animal has the id {pet_id} in {self._store.environment}")


async def check_adder(store: Store, name: str) -> None:
    """Raises OperatorError unless `name` is a key's id, or identifies an import or operator that has added animals.

    Raises Unavailable if the store does not respond.
    """
    if not await store.pets.is_adder(name):
        raise OperatorError(
            f"{name} is neither the id of a key nor an import or operator that has added animals to {store.environment}"
        )


def added_in_words(query: PetQuery) -> str:
    since = "" if query.since is None else f" since {when(query.since)}"
    until = "" if query.until is None else f" before {when(query.until)}"
    return f"added by {query.added_by}{since}{until}"


def checked_pet(pet: NewPet) -> NewPet:
    """Returns the animal if it is valid, and raises OperatorError otherwise."""
    try:
        return new_pet(msgspec.to_builtins(pet))
    except InvalidBody as error:
        raise OperatorError(error.message) from None


def _check_count(pet_ids: Sequence[int]) -> None:
    if len(pet_ids) > PETS_MAX:
        raise OperatorError(f"choose at most {PETS_MAX:,} animals at a time")
