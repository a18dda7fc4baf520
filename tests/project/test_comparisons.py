"""A failed comparison of animals or responses shows the members that differ."""

import json
from typing import Any

import msgspec
import pytest

from harness.differences import differences
from harness.pets import pet
from petstore.pets import Pet
from petstore.web.replies import Reply
from tests.conftest import pytest_assertrepr_compare
from tests.web.answers import Answer

REX, MAX = Pet(1, "Rex", 1, "available"), Pet(1, "Max", 1, "available")


@pytest.mark.parametrize(
    ("left", "right", "named"),
    [
        (pet(name="Rex"), pet(name="Max"), ["name: 'Rex' != 'Max'"]),
        (REX, MAX, ["name: 'Rex' != 'Max'"]),
        ([pet(id=1), pet(id=2)], [pet(id=1), pet(id=2, status="sold")], ["1.status: 'available' != 'sold'"]),
        ([pet(id=1)], [], [f"0 is only on the left: {pet()}"]),
        ({"code": "gone"}, {"code": "gone", "status": 410}, ["status is only on the right: 410"]),
        ((200, pet()), (404, pet(name="Max")), ["0: 200 != 404", "1.name: 'Rex' != 'Max'"]),
        (Reply(200, "", json.dumps(pet()).encode()), Reply(200, "", json.dumps(pet(name="Max")).encode()),
         ["body.name: 'Rex' != 'Max'"]),
        (Answer(200, [], b"[]"), Answer(304, [], b"[]"), ["status: 200 != 304"]),
        ("Rex", "Max", []),
        (b"[", b"{", []),
        (list(range(25)), list(range(1, 26)), [f"{n}: {n} != {n + 1}" for n in range(20)] + ["… and 5 more"]),
    ],
)  # fmt: skip
def test_a_failed_comparison_names_the_members_that_differ(left: Any, right: Any, named: list[str]) -> None:
    assert differences(left, right) == named
    shown = pytest_assertrepr_compare("==", left, right)
    assert shown is None if not named else shown is not None and shown[1:] == named
    assert pytest_assertrepr_compare("!=", left, right) is None


def test_an_expected_animal_has_every_member_and_the_defaults_of_a_new_one() -> None:
    assert msgspec.convert(pet(), Pet) == REX
    assert list(pet(categoryId=7)) == [field.encode_name for field in msgspec.structs.fields(Pet)]
    with pytest.raises(KeyError):
        pet(breed_of_no_animal="")
