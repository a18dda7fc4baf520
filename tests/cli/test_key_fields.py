"""The command line shows and changes every field of a key that operators change, and records each change."""

from typing import Any

from harness.commands import Commands
from harness.stores import BY
from petstore.edits import field_in_words
from petstore.keys import mint
from petstore.wording import when
from tests.key_fields import a_key, every_field, inputs, is_value, values_of


@every_field
def test_update_changes_a_field_and_show_shows_it(petstore: Commands, field: str) -> None:
    key = a_key()
    petstore.server.act(lambda backends: backends.stores["live"].keys.create(key, mint("live"), BY))
    for value in values_of(field):
        ((name, texts),) = inputs(field, value).items()
        words = [word for text in texts for word in (option(name), text)]
        assert is_value(petstore.json("keys", "update", key.id, *words)[field], value), "keys update"
        stored = petstore.json("keys", "show", key.id)[field]
        assert is_value(stored, value), "keys show --json"
        printed, _, _ = petstore.text("keys", "show", key.id).partition("\n\n")  # without errors and history
        assert lacking(printed, stored) == [], "keys show"
        assert field_in_words(field) in petstore.entries()[0].detail


@every_field
def test_update_without_an_option_names_every_option(petstore: Commands, field: str) -> None:
    (name,) = inputs(field, values_of(field)[0])
    assert option(name) in petstore.fails_in_one_line("keys", "update", "key_1").replace(",", "").split()


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def lacking(printed: str, value: Any) -> list[str]:
    """Returns the parts of a value that are not printed as separate words."""
    texts = value if isinstance(value, list) else [when(value) if isinstance(value, float) else str(value)]
    words = printed.replace(",", " ").split()
    return [text for text in texts if any(word not in words for word in text.split())]
