"""Forms that edit a key or an animal.

The hidden field `base` contains the record as it was when the form was loaded. Submitting the form changes only the
units (groups of related fields) that differ from this record. See docs/decisions/0023 for the reasons.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException

from petstore.audit import FoundEntries
from petstore.console.forms import Form
from petstore.edits import SOMEONE, Conflict, Unit, field_in_words, given, unit_in_words, without_unchanged

R = TypeVar("R", bound=msgspec.Struct)  # a key or an animal
C = TypeVar("C", bound=msgspec.Struct)  # changes to R


def base_of(form: Form, kind: type[R]) -> R | None:
    """Returns the record in the field `base`, or None if the field is empty.

    Raises HTTPException if the field is not a valid record.
    """
    text = form.text("base")
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        raise HTTPException(400) from None


def changes_in(
    form: Form, base: R | None, units: Sequence[Unit], form_of: Callable[[R], Form], parse: Callable[[Form], C]
) -> C:
    """Returns the changes that the operator made in the form. Raises whatever `parse` raises.

    If the operator chose to keep the saved values after a conflict, the field `keep` lists the units to leave
    unchanged.
    """
    wanted = parse(form)
    if base is None:
        return wanted
    kept = form.text("keep").split()
    # Parse the base in the same way as the form. Otherwise, a saved name with a trailing space would seem to differ.
    return without_unchanged(wanted, parse(form_of(base)), [unit for unit in units if unit[0] not in kept])


def done_message(form: Form, changes: msgspec.Struct, changed: str) -> str:
    return changed if given(changes) or not form.text("keep") else "Nothing was changed. The saved values were kept."


def edit_context(record: R | None, form: Form | None, error: Exception | None) -> dict[str, Any]:
    """Returns the template context for an edit form. `form` is the submitted form if saving it failed."""
    if isinstance(error, Conflict):
        conflicts = [
            (field_in_words(unit[0]), unit_in_words(error.current, unit), unit_in_words(error.wanted, unit))
            for unit in error.units
        ]
        keep = " ".join(unit[0] for unit in error.units)
        return {"base_record": _encoded(error.current), "conflicts": conflicts, "keep": keep}
    base = (form.text("base") if form else "") or _encoded(record)
    return {"base_record": base, "conflicts": [], "keep": ""}


def with_colleague(message: str, error: Exception | None, found: FoundEntries) -> str:
    """Replaces "someone else" in a Conflict's message with the name of the operator who made the conflicting change.

    Returns the message unchanged if the audit entries do not show who made the change.
    """
    if not isinstance(error, Conflict):
        return message
    names = tuple(f"{field_in_words(unit[0])} " for unit in error.units)
    by = (entry.actor for _, entry in found.entries if any(part.startswith(names) for part in entry.detail.split("; ")))
    return message.replace(SOMEONE, next(by, SOMEONE), 1)


def _encoded(record: msgspec.Struct | None) -> str:
    return msgspec.json.encode(record).decode()
