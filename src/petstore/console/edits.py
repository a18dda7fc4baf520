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
from petstore.edits import SOMEONE, Conflict, Unit, field_in_words, unit_in_words, without_unchanged

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
    """Returns the changes that the operator made in the form. Raises whatever `parse` raises."""
    wanted = parse(form)
    # Parse the base in the same way as the form. Otherwise, a saved name with a trailing space would seem to differ.
    return wanted if base is None else without_unchanged(wanted, parse(form_of(base)), units)


def edit_context(record: R | None, form: Form | None, error: Exception | None) -> dict[str, Any]:
    """Returns the template context for an edit form. `form` is the submitted form if saving it failed."""
    if isinstance(error, Conflict):  # when the operator saves again, compare with what the colleague has saved
        saved = {unit[0]: unit_in_words(error.current, unit) for unit in error.units}
        return {"base_record": _encoded(error.current), "conflicts": saved}
    return {"base_record": (form.text("base") if form else "") or _encoded(record), "conflicts": {}}


def with_colleague(message: str, error: Exception | None, found: FoundEntries) -> str:
    """Completes the message of a Conflict for a form that shows the saved values. Returns other messages unchanged.

    Replaces "someone else" with the operator who made the conflicting change, unless the audit entries do not show who
    it was.
    """
    if not isinstance(error, Conflict):
        return message
    names = tuple(f"{field_in_words(unit[0])} " for unit in error.units)
    by = (entry.actor for _, entry in found.entries if any(part.startswith(names) for part in entry.detail.split("; ")))
    return message.replace(SOMEONE, next(by, SOMEONE), 1) + " Save again to overwrite these values."


def _encoded(record: msgspec.Struct | None) -> str:
    return msgspec.json.encode(record).decode()
