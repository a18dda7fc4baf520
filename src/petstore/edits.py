"""Operators' changes to keys and animals, with conflict detection.

A unit is a group of fields that are changed together, such as a plan and its limits. Two operators can change different
units at the same time. If both change the same unit, the second operator gets a Conflict.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from petstore.errors import OperatorError
from petstore.wording import when

Unit = tuple[str, ...]  # field names; the first one is also the unit's name
SOMEONE = "someone else"  # the console replaces these words in messages with the operator's name from the audit log
R = TypeVar("R", bound=msgspec.Struct)


class Conflict(OperatorError):
    """Someone else has changed the same units since the operator loaded the record.

    `current` is the stored record. `wanted` is the stored record with the operator's changes applied.
    """

    def __init__(self, current: msgspec.Struct, wanted: msgspec.Struct, units: Sequence[Unit]) -> None:
        self.current = current
        self.wanted = wanted
        self.units = units
        names = ", ".join(field_in_words(unit[0]) for unit in units)
        super().__init__(f"Changed by {SOMEONE} since you opened this form: {names}. Nothing has been saved.")


def given(changes: msgspec.Struct) -> dict[str, Any]:
    """Returns the names and values of the fields that are not UNSET."""
    return {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not msgspec.UNSET}


def without_unchanged(wanted: R, started: R, units: Sequence[Unit]) -> R:
    """Returns the changes in `wanted`, leaving out any unit whose values are unchanged from `started`."""
    new = given(wanted)
    changed = [unit for unit in units if any(getattr(wanted, field) != getattr(started, field) for field in unit)]
    return type(wanted)(**{field: new[field] for unit in changed for field in unit if field in new})


def edited(record: R, new: Mapping[str, Any], base: R | None, units: Sequence[Unit]) -> R:
    """Returns the record with the new values.

    `base` is the record as the operator saw it, or None to skip the conflict check. Raises Conflict if someone else has
    since changed a unit that the operator is changing, unless both made the same change.
    """
    conflicts = [
        unit
        for unit in units
        if base is not None
        and any(getattr(record, field) != getattr(base, field) for field in unit)
        and any(field in new and getattr(record, field) != new[field] for field in unit)
    ]
    wanted = msgspec.structs.replace(record, **new)
    if conflicts:
        raise Conflict(record, wanted, conflicts)
    return wanted


def differences(before: R, after: R) -> dict[str, Any]:
    """Returns the fields whose values have changed, with their new values."""
    values = msgspec.structs.asdict(after)
    return {field: new for field, new in values.items() if new != getattr(before, field)}


def difference_in_words(before: R, after: R) -> str:
    """Describes the differences for an audit entry, for example `status available → sold`."""
    return "; ".join(
        f"{field_in_words(field)} {value_in_words(before, field)} → {value_in_words(after, field)}"
        for field in differences(before, after)
    )


def unit_in_words(record: msgspec.Struct, unit: Unit) -> str:
    first, *others = unit
    texts = [f"{field_in_words(field)} {value_in_words(record, field)}" for field in others]
    return ", ".join([value_in_words(record, first), *texts])


def field_in_words(field: str) -> str:
    return field.replace("_", " ")


def value_in_words(record: msgspec.Struct, field: str) -> str:
    value = getattr(record, field)
    if field == "expires":
        return when(value)
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return "+".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value) or '""'
