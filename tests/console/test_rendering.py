"""The template filters, and the age of numbers that were counted earlier."""

import pytest

from petstore.console.background import Result
from petstore.console.forms import Form
from petstore.console.rendering import Renderer, duration
from petstore.pets import Found


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (61, "1 min"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(("age", "said"), [(9.0, ""), (10.0, "counted 10 s ago"), (200.0, "counted 3 min ago")])
def test_a_number_of_animals_says_how_old_it_is(age: float, said: str) -> None:
    page = Renderer().html(
        "pets/list.html", environment="live", base="/live", now=0.0, troubles=[], actor="ada", can_change=False,
        section="animals", messages=[], q="", status="", added_by="", since="", until="", invalid=[],
        wanted={"since": "", "until": ""}, found=Found([], 0, more=False), hits=0, first=True,
        form=Form(), error="", matches=None, counts=Result({"available": 1_200, "sold": 34}, age),
    )  # fmt: skip
    text = bytes(page.body).decode()
    assert f"1,234 animals in live{', ' * bool(said)}{said}</span>" in text
