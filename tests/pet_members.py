"""Values for every member of an animal, based on the member's type, so that tests also cover new members."""

from typing import Any

import msgspec
from msgspec.inspect import IntType, LiteralType, Metadata, NoneType, StrType, Type, UnionType, type_info

from petstore.pets import NewPet, Pet
from petstore.store.schema import Row

# The members of a new animal. After its id, Pet has the same members in the same order.
MEMBERS = msgspec.structs.fields(NewPet)


def two_values(member: msgspec.structs.FieldInfo) -> tuple[Any, Any]:
    """Returns two values that differ from each other and from the default. Raises LookupError for an unknown type."""
    values = [value for value in _values_of(type_info(member.type), member.encode_name) if value != member.default]
    try:
        first, second = (msgspec.convert(value, member.type) for value in values[:2])
    except ValueError:  # too few values, or one that the type does not allow (msgspec raises a ValueError)
        raise LookupError(f"give a value for {member.encode_name} in tests/pet_members.py") from None
    return first, second


def _values_of(kind: Type, name: str) -> list[Any]:
    match kind:
        case Metadata():
            return _values_of(kind.type, name)
        case UnionType():
            return [value for each in kind.types if not isinstance(each, NoneType) for value in _values_of(each, name)]
        case LiteralType():
            return list(kind.values)
        case IntType():
            return [471, 472]
        case StrType():
            return [f"The {name}", f"Other {name}"]
    return []


# Two animals with a value for every member, and one with only the required members.
FIRST, SECOND = (NewPet(**{each.name: two_values(each)[place] for each in MEMBERS}) for place in range(2))
LEAST = NewPet(**{each.name: two_values(each)[0] for each in MEMBERS if each.required})


def with_id(pet_id: int, new: NewPet) -> Pet:
    return Pet(id=pet_id, **msgspec.structs.asdict(new))


def pet_row(pet_id: int, added_by: int | None = None) -> Row:
    """Returns a row of the table `pets` with a value for every member."""
    return (*msgspec.structs.astuple(with_id(pet_id, FIRST)), 0, added_by, 1_800_000_000)


def texts(new: NewPet) -> dict[str, str]:
    """Returns the text that an operator types for each member that has a value."""
    values = zip(new.__struct_encode_fields__, msgspec.structs.astuple(new), strict=True)
    return {name: str(value) for name, value in values if value is not None}


def changed(before: NewPet | Pet, after: NewPet | Pet) -> list[str]:
    """Returns the members that differ, each with its old and new value."""
    values = msgspec.to_builtins(after)
    return [f"{name}: {value} → {values.get(name)}" for name, value in msgspec.to_builtins(before).items()
            if values.get(name) != value]  # fmt: skip


def lacking(text: str, new: NewPet | Pet) -> list[str]:
    """Returns the members whose values do not appear in a text."""
    return [name for name, value in msgspec.to_builtins(new).items() if str(value) not in text]
