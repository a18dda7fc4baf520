"""Rows of .jsonl, .csv and .json files: each is an animal or the reason why it is not.

A file is read in blocks, and each reader yields None after a block, so that nobody waits long for the next row.
"""

import csv
import hashlib
from collections.abc import Iterator
from typing import IO

from petstore.admin.json_array import NotAnArray, array_elements
from petstore.admin.pet_texts import IMPORTED, pet_of_texts
from petstore.errors import InvalidBody, OperatorError
from petstore.pets import NewPet, parse_new_pet

BLOCK = 256 * 1024  # bytes
LINE_MAX = 64 * 1024  # bytes; a longer line is cut after one byte more
DELIMITERS = ",;\t"  # of a .csv file: spreadsheets write the one of their language
Row = tuple[int, NewPet | str]  # the number of the line, and the animal or the fault


class Blocks:
    """The blocks of a file from its beginning, and the number and the digest of the bytes read so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0
        self.digest = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while block := self._file.read(BLOCK):
            self.bytes += len(block)
            self.digest.update(block)
            yield block

    def lines(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yields the lines that end in each block, with the number of the first. A long line is cut."""
        number, rest = 1, b""
        for block in self:
            *lines, rest = (rest + block).split(b"\n")
            rest = rest[: LINE_MAX + 1]
            yield number, lines
            number += len(lines)
        if rest:
            yield number, [rest]


def jsonl_rows(blocks: Blocks) -> Iterator[Row | None]:
    for first, lines in blocks.lines():
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                text = _text_of(line, number)
                if text.strip():
                    yield number, parse_new_pet(text.encode())
            except (InvalidBody, OperatorError) as error:
                yield number, str(error).replace("The body", "the line", 1)
        yield None


def json_rows(blocks: Blocks) -> Iterator[Row | None]:
    """The rows of one array of objects. The line of a row is the one where its object begins."""
    try:
        for element in array_elements(blocks):
            if element is None:
                yield None
                continue
            number, content = element
            try:
                yield number, parse_new_pet(content)
            except InvalidBody as error:
                yield number, str(error).replace("The body", "the object", 1)
    except NotAnArray as error:
        yield error.line, f"the file is not a valid JSON array: {error}"


def csv_rows(blocks: Blocks) -> Iterator[Row | None]:
    """A row takes one line, since a name has no line break. So a quote that is not closed hides no other row."""
    names: list[str] = []
    delimiter = ""
    for first, lines in blocks.lines():
        for number, line in enumerate(lines, first):
            if names and not line.strip():
                continue
            try:
                text = _text_of(line, number)
                delimiter = delimiter or max(DELIMITERS, key=text.count)  # the most frequent one of the header line
                values = next(csv.reader([text], strict=True, delimiter=delimiter), [])
                if names:
                    yield number, _pet_of(names, values)
                else:
                    _check_header(values)
                    names = values
            except (InvalidBody, OperatorError, csv.Error) as error:
                said = "not valid CSV, where each row takes one line: " if isinstance(error, csv.Error) else ""
                yield number, f"{said}{error}"
                if not names:
                    return
        yield None
    if not names:
        yield 1, "the header line is missing"


def _text_of(line: bytes, number: int) -> str:
    """Raises OperatorError."""
    if len(line) > LINE_MAX:
        raise OperatorError(f"longer than {LINE_MAX // 1024} KiB; one animal a line")
    try:
        return line.decode("utf-8" if number > 1 else "utf-8-sig")
    except UnicodeDecodeError:
        raise OperatorError("not valid UTF-8") from None


def _check_header(names: list[str]) -> None:
    """Raises OperatorError for a misspelled column, which would otherwise be ignored. Other columns are ignored."""
    for name in IMPORTED:
        alike = [column for column in names if column.strip().lower() == name.lower()]
        if len(alike) > 1:
            raise OperatorError(f"the header line has {name} more than once")
        if alike and alike != [name]:
            raise OperatorError(f'the header line has "{alike[0]}" where {name} is expected')
    if missing := [name for name in ("categoryId", "name") if name not in names]:
        raise OperatorError(f"the header line lacks {' and '.join(missing)}")


def _pet_of(names: list[str], values: list[str]) -> NewPet:
    """Raises InvalidBody and OperatorError."""
    if len(values) > len(names):
        raise OperatorError(f"there are more values than the {len(names)} columns of the header line")
    return pet_of_texts(dict(zip(names, values, strict=False)))
