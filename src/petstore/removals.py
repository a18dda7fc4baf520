"""Removals of animals. An operator can remove several animals together, and restore them later."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from petstore.audit import Actor, AuditEntry, PetAction
from petstore.pets import Pet, new_id, pet_in_words
from petstore.wording import counted

REMOVAL_PREFIX = "rem_"  # the prefix of removal ids
IDS_MAX = 10  # the maximum number of ids listed in an audit entry


class Removal(msgspec.Struct, frozen=True):
    """A record of animals that an operator removed together. `at` is in Unix seconds."""

    id: str
    at: float
    actor: str
    pets: int  # the number of these animals that have not been restored


class Removed(NamedTuple):
    """The result of a removal. The id is None if no animals were removed."""

    removal_id: str | None
    pets: list[Pet]


class RemovedPet(NamedTuple):
    """A removed animal, as it was before it was removed."""

    pet: Pet
    removal: Removal


def new_removal_id() -> str:
    return new_id(REMOVAL_PREFIX)


def removal_entry(by: Actor, action: PetAction, removal_id: str, pets: Sequence[Pet]) -> AuditEntry:
    """Returns the audit entry for animals that are removed or restored together.

    The entry's subject is the removal's id. For a single animal, the subject is the animal's id, so that the entry
    appears in the animal's history.
    """
    if len(pets) == 1:
        return by.entry(action, str(pets[0].id), f"{pet_in_words(pets[0])}, {removal_id}")
    ids = ", ".join(str(pet.id) for pet in pets[:IDS_MAX]) + (" …" if len(pets) > IDS_MAX else "")
    return by.entry(action, removal_id, f"{counted(len(pets), 'animal')}: {ids}")
