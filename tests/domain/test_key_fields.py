"""Every field of a key that operators change is compared, limited and described in the audit log."""

import time

import pytest

from petstore.edits import Conflict, field_in_words
from petstore.errors import OperatorError
from petstore.keys import KEY_UNITS, changed_key, key_difference_in_words
from tests.key_fields import KINDS, TEXTS, a_key, changes, every_field, values_of


def test_every_field_belongs_to_one_unit() -> None:
    assert sorted(field for unit in KEY_UNITS for field in unit) == sorted(KINDS), "keys.py: KEY_UNITS"


@every_field
def test_two_changes_of_a_field_conflict(field: str) -> None:
    key, (theirs, ours) = a_key(), values_of(field)
    stored = changed_key(key, changes(field, theirs), key)
    assert getattr(stored, field) == theirs
    with pytest.raises(Conflict):
        changed_key(stored, changes(field, ours), key)


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize("wrong", ["x" * 256, "\x00", "\n", "\ud800"], ids=["long", "NUL", "line", "surrogate"])
def test_a_text_is_limited_and_has_no_control_characters(field: str, wrong: str) -> None:
    assert getattr(changed_key(a_key(), changes(field, "é" * 255)), field) == "é" * 255
    with pytest.raises(OperatorError, match=f"a key's {field_in_words(field)} must have at most 255 characters"):
        changed_key(a_key(), changes(field, wrong))


@every_field
def test_the_audit_log_describes_a_change(field: str) -> None:
    key = a_key()
    detail = key_difference_in_words(key, changed_key(key, changes(field, values_of(field)[0])), time.time())
    assert any(each.startswith(f"{field_in_words(field)} ") for each in detail.split("; ")), detail
