"""Reads rows from .jsonl, .csv and .json files. A row is either an animal or an error message.

Files are read in blocks. Each reader yields None at the end of every block, so that callers can pause even if the
block contains no rows.
"""

import codecs
import csv
import difflib
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any

import msgspec

from petstore.errors import InvalidBody, OperatorError
from petstore.formats.json_array import NotAnArray, array_elements
from petstore.formats.pet_texts import IMPORTED, members_of_texts, pet_of_texts
from petstore.pets import STATUSES, NewPet, faults_of, parse_new_pet
from petstore.wording import printable

BLOCK = 256 * 1024  # bytes
LINE_MAX = 64 * 1024  # bytes; longer lines are truncated to LINE_MAX + 1 bytes, so they still exceed the limit
DELIMITERS = ",;\t"  # in .csv files; spreadsheet programs choose one based on the locale
REQUIRED = ("name", "categoryId")
SHOWN_MAX = 60  # maximum number of characters that a message quotes from a string in a file
COMPARED_MAX = 100  # maximum number of column or member names that are checked for misspellings
Row = tuple[int, NewPet | str]  # the line number, and either the animal or an error message


class Reading:
    """Reads a file once from the beginning, in blocks. Tracks the total size and digest of the blocks read so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0
        self.digest = hashlib.sha256()
        self.unknown_columns: list[str] = []  # in a .csv file

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while block := self._file.read(BLOCK):
            self.bytes += len(block)
            self.digest.update(block)
            yield block

    def lines(self) -> Iterator[tuple[int, list[bytes]]]:
        """For each block, yields the lines that end in it and the number of the first one. Truncates long lines."""
        number, rest = 1, b""
        for block in self:
            *lines, rest = (rest + block).split(b"\n")
            rest = rest[: LINE_MAX + 1]
            yield number, lines
            number += len(lines)
        if rest:
            yield number, [rest]


def jsonl_rows(reading: Reading) -> Iterator[Row | None]:
    for first, lines in reading.lines():
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                text = _text_of(line, number, "save the file as UTF-8")
                if text.strip():
                    yield number, _pet_of_json(text.encode(), "the line")
            except OperatorError as error:
                yield number, str(error)
        yield None


def json_rows(reading: Reading) -> Iterator[Row | None]:
    """Yields a row for each object in a JSON array, numbered by the line on which the object begins."""
    try:
        for element in array_elements(reading):
            if element is None:
                yield None
                continue
            number, content = element
            try:
                _decoded(content, "save the file as UTF-8")
                yield number, _pet_of_json(content, "the object")
            except OperatorError as error:
                yield number, str(error)
    except NotAnArray as error:
        yield error.line, f"the file is not a valid JSON array: {error}"


def csv_rows(reading: Reading) -> Iterator[Row | None]:
    """Yields one row per line. Names cannot contain line breaks, so an unclosed quote affects only its own line."""
    names: list[str] = []
    delimiter = ""
    for first, lines in reading.lines():
        for number, line in enumerate(lines, first):
            if names and not line.strip():
                continue
            try:
                text = _text_of(line, number, "save the file as CSV UTF-8")
                delimiter = delimiter or max(DELIMITERS, key=text.count)  # the most frequent delimiter in the header
                values = next(csv.reader([text], strict=True, delimiter=delimiter), [])
                if names:
                    yield number, _pet_of_values(names, values)
                else:
                    _check_header(values, text)
                    names = values
                    reading.unknown_columns = [name for name in names if _spelling(name) not in _EXPECTED]
            except (OperatorError, csv.Error) as error:
                said = "not valid CSV (each row must be on one line): " if isinstance(error, csv.Error) else ""
                yield number, f"{said}{error}"
                if not names:
                    return
        yield None
    if not names:
        yield 1, f"the header line is missing: the first line must be {','.join(IMPORTED)}"


def _text_of(line: bytes, number: int, remedy: str) -> str:
    """Decodes a line. Raises OperatorError if it is too long or not valid UTF-8."""
    if len(line) > LINE_MAX:
        raise OperatorError(f"the line is longer than {LINE_MAX // 1024} KiB; write one animal per line")
    return _decoded(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, remedy)


def _decoded(content: bytes, remedy: str) -> str:
    """Decodes the content. Raises OperatorError if it is not valid UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        shown = quoted(content[: 4 * SHOWN_MAX].decode(errors="backslashreplace"))
        raise OperatorError(f"{shown} is not valid UTF-8; {remedy}") from None


def _check_header(names: list[str], line: str) -> None:
    """Raises OperatorError if a column is missing, repeated or misspelled. Ignores other unknown columns."""
    for name in IMPORTED:
        if [_spelling(each) for each in names].count(_spelling(name)) > 1:
            raise OperatorError(f"the header line contains {name} more than once")
    if misspelled := _misspelled(tuple(names)):
        raise OperatorError(f"unknown column {misspelled}")
    missing = [name for name in REQUIRED if name not in names]
    if missing == list(REQUIRED):
        expected = f"the first line must be {','.join(IMPORTED)}, not {quoted(line.strip())}"
        raise OperatorError(f"the header line is missing: {expected}")
    if missing:
        raise OperatorError(f"the header line does not contain {' or '.join(missing)}")


@functools.lru_cache(maxsize=16)  # in most files, all rows have the same members, so the result can be reused
def _misspelled(names: tuple[str, ...]) -> str:
    """Returns the first name that seems misspelled, with a suggestion, or an empty string if none does."""
    unknown = [name for name in names[:COMPARED_MAX] if name not in IMPORTED and len(name) <= SHOWN_MAX]
    for name in IMPORTED:
        similar = [each for each in unknown if _spelling(each) == _spelling(name)]
        if not similar and name not in names:
            similar = difflib.get_close_matches(name, unknown, n=1, cutoff=0.75)
        if similar:
            return f"{quoted(similar[0])}; did you mean {name}?"
    return ""


def _spelling(name: str) -> str:
    """Normalises a name, so that categoryId, CATEGORY_ID and "category id" compare equal."""
    return re.sub(r"[\W_]", "", name).lower()


# Columns that do not trigger a warning: imported columns, other exported columns, and unnamed spreadsheet columns.
_EXPECTED = {*map(_spelling, IMPORTED), "id", "addedby", "addedat", ""}


def _pet_of_json(content: bytes, noun: str) -> NewPet:
    """Parses a new animal.

    Raises OperatorError if the content is invalid. The message refers to the content as `noun`.
    """
    try:
        new = parse_new_pet(content)
    except InvalidBody as error:
        explained = _explained(error, _members_of(content)).replace("The body", noun, 1)
        if noun == "the line":  # callers prefix the message with the line's number in the file
            explained = explained.replace(" at line 1, column", " at column", 1)
        raise OperatorError(explained) from None
    if misspelled := _misspelled(tuple(_members_of(content))):
        raise OperatorError(f"unknown member {misspelled}")
    return new


def _members_of(content: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _pet_of_values(names: list[str], values: list[str]) -> NewPet:
    """Converts the values in a CSV row into an animal. Raises OperatorError if the row is invalid."""
    if len(values) > len(names):
        raise OperatorError(f"the row has more values than the header line has columns ({len(names)})")
    texts = dict(zip(names, values, strict=False))
    try:
        return pet_of_texts(texts)
    except InvalidBody as error:
        raise OperatorError(_explained(error, members_of_texts(texts))) from None


def _explained(error: InvalidBody, members: Mapping[str, Any]) -> str:
    """Returns a message that shows the invalid values and suggests a correction if a member is misspelled."""
    faults = faults_of(members) if members else {}
    if not faults:
        return str(error)
    explained = "; ".join(_reason(name, fault, members) for name, fault in faults.items())
    misspelled = _misspelled(tuple(members))
    return f"{explained}; unknown member {misspelled}" if misspelled else f"{explained}."


def _reason(name: str, fault: str, members: Mapping[str, Any]) -> str:
    value = members.get(name)
    if not isinstance(value, str | int | float):
        return f"{name} {fault}"
    shown = quoted(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
    if name == "status":
        return f"status {shown} is not one of {', '.join(STATUSES)} (case-sensitive)"
    return f"{name} {fault}, not {shown}"


def quoted(text: str) -> str:
    """Quotes the beginning of a string from a file, for use in a message."""
    return f'"{printable(text[:SHOWN_MAX])}{"…" if len(text) > SHOWN_MAX else ""}"'
