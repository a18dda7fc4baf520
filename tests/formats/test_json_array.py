"""Splitting JSON arrays into their elements, regardless of the block boundaries."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from petstore.formats.json_array import ELEMENT_MAX, NotAnArray, array_elements

TEXTS = some.text(some.sampled_from('a"\\\\/[]{},: \n\téß🐕\u2028'), max_size=8)
VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | TEXTS,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


def split(text: bytes, size: int = 1 << 18) -> list[tuple[int, bytes]]:
    blocks = (text[start : start + size] for start in range(0, len(text), size))
    return [each for each in array_elements(blocks) if each is not None]


@given(
    some.lists(VALUES, max_size=5),
    some.integers(1, 9),
    some.sampled_from([None, 0, 2]),
    some.booleans(),
    some.booleans(),
)
def test_elements_are_those_of_the_array(
    values: list[object], size: int, indent: int | None, ascii_only: bool, bom: bool
) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode("utf-8-sig" if bom else "utf-8")
    found = split(text, size)
    assert [json.loads(element) for _, element in found] == values
    assert found == split(text), "the block size must not make a difference"


@given(some.text(some.sampled_from('[]{},"\\\\ 0\n'), max_size=12), some.integers(1, 4))
def test_an_array_is_accepted_only_if_it_is_valid(text: str, size: int) -> None:
    """If the elements are valid JSON, the splitter accepts an array if and only if a decoder accepts it."""
    assert split_array(text.encode(), size) == decoded_array(text)


def split_array(text: bytes, size: int) -> list[object] | None:
    try:
        return [json.loads(element) for _, element in split(text, size)]
    except ValueError:  # including NotAnArray
        return None


def decoded_array(text: str) -> list[object] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list) else None


@pytest.mark.parametrize("size", [1, 3, 1 << 18])
@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "it is empty"),
        ("\n \n", 3, "it is empty"),
        ("\n{}", 2, "it does not begin with ["),
        ("\ufeff\ufeff[]", 1, "it does not begin with ["),
        ("[\n{},\n\n", 4, "it ends without ]"),
        ("[", 1, "it ends without ]"),
        ("[{},\n]", 2, "a value is missing"),
        ("[,{}]", 1, "a value is missing"),
        ("[{},\n,{}]", 2, "a value is missing"),
        ("[]\n\n[]", 3, "there is text after the closing ]"),
        ("[{}],", 1, "there is text after the closing ]"),
        ("[1,\n\n{" + "x" * ELEMENT_MAX, 3, "a value is longer than 64 KiB, or a bracket or quote is not closed"),
        ('[1,\n"' + "\n" * ELEMENT_MAX + '"]', 2, "a value is longer than 64 KiB"),
    ],
)
def test_errors_name_their_line(text: str, line: int, reason: str, size: int) -> None:
    with pytest.raises(NotAnArray, match=reason.replace("[", r"\[")) as raised:
        split(text.encode(), size)
    assert raised.value.line == line


def test_elements_have_the_lines_where_they_begin() -> None:
    text = b'\n[ 1,\n\n{"a":\n[2,\n3]}\n,\n"x\\\ny", 4\n]\n'
    assert [line for line, _ in split(text)] == [line for line, _ in split(text, 1)] == [2, 4, 8, 9]


def test_the_longest_element_is_whole() -> None:
    longest = b'"' + b"x" * (ELEMENT_MAX - 2) + b'"'
    assert split(b"[" + longest + b"]", 1000) == [(1, longest)]
