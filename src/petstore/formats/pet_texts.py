"""Converts animals to and from strings, for CSV rows and forms."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from petstore.pets import NewPet, Pet, new_pet

COLUMNS = Pet.__struct_encode_fields__  # the columns of an exported file
IMPORTED = NewPet.__struct_encode_fields__  # the columns of an imported file; new animals have no id yet
ORIGIN_COLUMNS = ("added_by", "added_at")  # optional in an exported file; ignored during an import
NUMBERS = ("categoryId",)  # the columns in IMPORTED that contain whole numbers
_WHOLE_NUMBER = re.compile(" *-?[0-9]{1,19} *").fullmatch


def pet_of_texts(texts: Mapping[str, str]) -> NewPet:
    """Parses an animal from a mapping of column names to strings. An empty string counts as a missing value.

    Raises InvalidBody if a value is missing or invalid.
    """
    return new_pet(members_of_texts(texts))


def members_of_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    members: dict[str, Any] = {name: texts[name] for name in IMPORTED if texts.get(name)}
    for name in NUMBERS:
        if _WHOLE_NUMBER(members.get(name, "")):
            members[name] = int(members[name])
    return members


def texts_of_pet(pet: Pet) -> dict[str, str]:
    """Returns an animal's values as strings, by column name. None becomes an empty string."""
    values = zip(COLUMNS, msgspec.structs.astuple(pet), strict=True)
    return {name: "" if value is None else str(value) for name, value in values}
