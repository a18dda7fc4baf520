"""Shows in which members two values differ, such as animals, responses or lists."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

_ABSENT = object()
SHOWN_MAX = 20


def differences(left: object, right: object) -> list[str]:
    """Returns one line per member that differs, or an empty list if the values have no members to compare."""
    first, second = _members(left), _members(right)
    if first is None or second is None:
        return []
    found = list(_differing("", first, second))
    return found[:SHOWN_MAX] + ([f"… and {len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else [])


def _differing(where: str, left: dict[str, Any], right: dict[str, Any]) -> Iterator[str]:
    for name in left | right:
        one, other = left.get(name, _ABSENT), right.get(name, _ABSENT)
        if one is _ABSENT:
            yield f"{where}{name} is only on the right: {other!r}"
        elif other is _ABSENT:
            yield f"{where}{name} is only on the left: {one!r}"
        elif one != other:
            first, second = _members(one), _members(other)
            if first is not None and second is not None:
                yield from _differing(f"{where}{name}.", first, second)
            else:
                yield f"{where}{name}: {one!r} != {other!r}"


def _members(value: object) -> dict[str, Any] | None:
    """Returns the members of an object or a list, which may be JSON, or None for any other value."""
    if isinstance(value, bytes) and value[:1] in (b"{", b"["):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return {str(name): member for name, member in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if isinstance(value, list | tuple):
        return {str(place): member for place, member in enumerate(value)}
    return None
