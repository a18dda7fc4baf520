"""The command line supports every member of an animal: as an option, in its output, and in the audit log."""

from typing import Any

import msgspec
import pytest

from harness.commands import Commands
from petstore.formats.pet_texts import ORIGIN_COLUMNS
from petstore.pets import NewPet
from tests.pet_members import FIRST, LEAST, MEMBERS, SECOND, lacking, with_id


def options(new: NewPet) -> list[str]:
    """Returns the command-line options that set the values of an animal."""
    given = {name: value for name, value in msgspec.structs.asdict(new).items() if value is not None}
    return [word for name, value in given.items() for word in (option(name), str(value))]


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


@pytest.mark.parametrize("command", ["add", "update"])
@pytest.mark.on("sqlite-lmdb")
def test_a_member_has_an_option(petstore: Commands, command: str) -> None:
    offered = petstore.text("pets", command, "--help").split()
    assert [f"pets {command} lacks {option(each.name)}" for each in MEMBERS if option(each.name) not in offered] == []


def shown(petstore: Commands) -> dict[str, Any]:
    """Returns what `pets show` prints for animal 1, except who added it and when."""
    printed = petstore.json("pets", "show", "1")
    return {name: value for name, value in printed.items() if name not in ORIGIN_COLUMNS}


def test_an_added_animal_has_every_member(petstore: Commands) -> None:
    added = petstore.json("pets", "add", *options(FIRST))
    assert added == shown(petstore) == msgspec.to_builtins(with_id(1, FIRST))
    assert lacking(petstore.entries()[0].detail, FIRST) == [], "the audit entry of an added animal lacks members"


def test_an_update_changes_every_member(petstore: Commands) -> None:
    petstore.text("pets", "add", *options(LEAST))
    changed = petstore.json("pets", "update", "1", *options(SECOND))
    assert changed == shown(petstore) == msgspec.to_builtins(with_id(1, SECOND))
    detail = petstore.entries()[0].detail
    before, after = msgspec.structs.asdict(LEAST), msgspec.structs.asdict(SECOND)
    for name, value in before.items():
        before_it = "none" if value is None else value
        assert f"{name.replace('_', ' ')} {before_it} → {after[name]}" in detail.split("; ")


def test_what_is_printed_for_people_has_every_member(petstore: Commands) -> None:
    petstore.text("pets", "add", *options(FIRST))
    pet = with_id(1, FIRST)
    titles, row = petstore.text("pets", "list").splitlines()
    assert titles.split() == [name.upper() for name in pet.__struct_encode_fields__]
    assert lacking(row, pet) == [], "pets list lacks members"
    assert lacking(petstore.text("pets", "show", "1"), pet) == [], "pets show lacks members"


def test_a_member_without_a_value_is_not_printed_as_none(petstore: Commands) -> None:
    printed = petstore.text("pets", "add", *options(LEAST)) + petstore.text("pets", "list")
    assert "None" not in printed + petstore.entries()[0].detail


@pytest.mark.on("sqlite-lmdb")
def test_the_help_of_an_import_names_every_column(petstore: Commands) -> None:
    words = petstore.text("pets", "import", "--help").split()
    assert ",".join(each.encode_name for each in MEMBERS) in words
