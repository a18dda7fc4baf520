"""Returns expected animals, based on the fields of `Pet` so that adding an optional field breaks few tests."""

from typing import Any

import msgspec

from petstore.pets import NewPet, Pet

_DEFAULTS: dict[str, Any] = {"id": 1, "name": "Rex", "category_id": 1} | {
    field.name: field.default for field in msgspec.structs.fields(NewPet) if field.default is not msgspec.NODEFAULT
}
_NAMES = {field.encode_name: field.name for field in msgspec.structs.fields(Pet)}


def pet(**members: Any) -> dict[str, Any]:
    """Returns an animal as the service writes it in JSON. Omitted members have the defaults of a new animal."""
    values = _DEFAULTS | {_NAMES[name]: value for name, value in members.items()}
    made: dict[str, Any] = msgspec.to_builtins(Pet(**values))
    return made
