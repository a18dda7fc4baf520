"""Values for every field of a key that operators change, based on its type, so that tests also cover new fields."""

import time
from typing import Any

import msgspec
import pytest
from msgspec.inspect import FloatType, IntType, LiteralType, StrType, Type, UnionType, VarTupleType, type_info

from petstore.keys import ApiKey, KeyChanges, new_key
from petstore.plans import Limits

KINDS = {field.name: type_info(field.type) for field in msgspec.structs.fields(KeyChanges)}
TEXTS = [name for name, kind in KINDS.items() if isinstance(kind, StrType)]
every_field = pytest.mark.parametrize("field", KINDS)
DAY = 86_400


def a_key() -> ApiKey:
    """Returns a key on the only plan with custom limits."""
    return new_key("live", "enterprise", now=time.time(), name="Ada", contact="ada@example.com", limits=Limits(5, 50))


def values_of(field: str) -> tuple[Any, Any]:
    """Returns two values that differ from each other and from those of `a_key`. Times are in the future."""
    values = [value for value in _values_of(KINDS[field], field) if value != getattr(a_key(), field)]
    assert len(values) >= 2, f"give two values for {field} in tests/key_fields.py"
    return values[0], values[1]


def _values_of(kind: Type, name: str) -> list[Any]:
    match kind:
        case UnionType():
            return [value for each in kind.types for value in _values_of(each, name)]
        case LiteralType():
            return list(kind.values)
        case VarTupleType():
            return [(value,) for value in _values_of(kind.item_type, name)]
        case IntType():
            return [471, 472]
        case FloatType():
            return [time.time() + 10 * DAY, time.time() + 20 * DAY]
        case StrType():
            return [f"The {name}", f"Other {name}"]
    return []


def changes(field: str, value: Any) -> KeyChanges:
    return KeyChanges(**{field: value})


def inputs(field: str, value: Any) -> dict[str, list[str]]:
    """Returns what an operator enters for a value, by the name of the input. Times are entered as durations."""
    if isinstance(value, tuple):
        return {field.removesuffix("s"): list(value)}
    return {field: [f"{round((value - time.time()) / DAY)}d" if isinstance(value, float) else str(value)]}


def is_value(found: Any, value: Any) -> bool:
    """Returns whether a stored value equals the entered value. Times may differ by a minute."""
    if isinstance(value, float):
        return found is not None and abs(found - value) < 60
    return bool((tuple(found) if isinstance(found, list) else found) == value)
