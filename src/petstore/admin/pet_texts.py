"""An animal as texts, which rows of CSV and forms have."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from petstore.pets import NewPet, Pet, new_pet

COLUMNS = Pet.__struct_encode_fields__  # of an exported animal: the names of its members
IMPORTED = NewPet.__struct_encode_fields__  # of an animal to be added: the catalogue assigns the id
ORIGIN_COLUMNS = ("added_by", "added_at")  # of an exported animal, on request; an import ignores them
NUMBERS = ("categoryId",)  # those of IMPORTED that are whole numbers; the others are texts
_WHOLE_NUMBER = re.compile(" *-?[0-9]{1,19} *").fullmatch


def pet_of_texts(texts: Mapping[str, str]) -> NewPet:
    """From texts by the names of the members. An empty text is no value. Raises InvalidBody."""
    return new_pet(members_of_texts(texts))


def members_of_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    members: dict[str, Any] = {name: texts[name] for name in IMPORTED if texts.get(name)}
    for name in NUMBERS:
        if _WHOLE_NUMBER(members.get(name, "")):
            members[name] = int(members[name])
    return members


def texts_of_pet(pet: Pet) -> dict[str, str]:
    """The texts by the names of the members. A member without a value has an empty text."""
    values = zip(COLUMNS, msgspec.structs.astuple(pet), strict=True)
    return {name: "" if value is None else str(value) for name, value in values}
