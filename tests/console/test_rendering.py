"""The filters of the templates."""

import pytest

from petstore.console.rendering import duration


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
