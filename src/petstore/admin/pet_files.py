"""Animals in files: reads .jsonl, .csv and .json, writes .jsonl and .csv, for the command line and the console."""

import asyncio
import codecs
import csv
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Literal, NamedTuple

import msgspec

from petstore.errors import InvalidBody, OperatorError
from petstore.pets import NewPet, Page, Pet, new_pet, parse_new_pet

BATCH = 2_000
BAD_ROWS_MAX = 100  # that a message lists
LINE_MAX = 64 * 1024  # bytes: a file of one long line must not fill the memory
JSON_MAX = 64 * 1024 * 1024  # bytes of a .json file, which is read at once
COLUMNS = Pet.__struct_encode_fields__  # of an exported animal: the names of its members
IMPORTED = NewPet.__struct_encode_fields__  # of an animal to be added: the catalogue assigns the id
NUMBERS = ("categoryId",)  # those of IMPORTED that are whole numbers; the others are texts
DELIMITERS = ",;\t"  # of a .csv file: spreadsheets write the one of their language
Format = Literal["jsonl", "csv", "json"]
FORMATS: tuple[Format, ...] = ("jsonl", "csv", "json")
EXPORTED: tuple[Format, ...] = ("jsonl", "csv")
ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".json": "json"}
Row = tuple[int, NewPet | str]  # the number of the line, and the animal or the fault


def format_of(name: str, among: Sequence[Format] = FORMATS) -> Format:
    """The format of a file by its name. Raises OperatorError."""
    for ending, chosen in ENDINGS.items():
        if name.lower().endswith(ending) and chosen in among:
            return chosen
    *others, last = (ending for ending, chosen in ENDINGS.items() if chosen in among)
    raise OperatorError(f"{name}: the name must end in {', '.join(others)} or {last}")


class Checked(NamedTuple):
    """What the first reading of a file has found."""

    animals: int
    bad_rows: int
    sha256: str  # of its bytes
    marks: list[bytes]  # the digest of the bytes up to each BATCH of rows


class PetFile:
    """The rows of a file that can be read twice: first it is checked whole, then its animals are added."""

    def __init__(self, name: str, source: IO[bytes], written_as: Format | None = None) -> None:
        """Without a format, the name tells it. Raises OperatorError for a name that does not."""
        self._name = name
        self._rows_of = {"jsonl": _jsonl_rows, "csv": _csv_rows, "json": _json_rows}[written_as or format_of(name)]
        self._source = source

    async def read(
        self, bad: Callable[[int, str], None], progress: Callable[[int], None] = lambda position: None
    ) -> Checked:
        """Read all of the file. `bad` is called with the line and the fault of each bad row.

        `progress` is called with the number of bytes read so far.
        """
        lines = _Lines(self._source)
        animals, rows, marks = 0, 0, []
        async for rows, (number, row) in self._rows(lines):
            if isinstance(row, str):
                bad(number, row)
            else:
                animals += 1
            if rows % BATCH == 0:
                marks.append(lines.digest.digest())
                progress(lines.bytes)
        progress(lines.bytes)
        return Checked(animals, rows - animals, lines.digest.hexdigest(), marks)

    async def check(self, progress: Callable[[int], None] = lambda position: None) -> Checked:
        """Read all of the file, of which every row must be good.

        Raises OperatorError if any row is bad, or if there is no row. The message lists up to BAD_ROWS_MAX bad rows.
        """
        listed: list[str] = []

        def bad(number: int, fault: str) -> None:
            if len(listed) < BAD_ROWS_MAX:
                listed.append(f"\n  line {number}: {fault}")

        checked = await self.read(bad, progress)
        if checked.bad_rows:
            more = checked.bad_rows - len(listed)
            hint = f"\n  and {more:,} more, which petstore pets import --dry-run lists" if more else ""
            counted = f"{checked.bad_rows:,} bad {'row' if checked.bad_rows == 1 else 'rows'}"
            raise OperatorError(f"{self._name}: {counted}, so nothing was imported" + "".join(listed) + hint)
        if not checked.animals:
            raise OperatorError(f"no animals in {self._name}")
        return checked

    async def batches(self, checked: Checked) -> AsyncIterator[tuple[int, Sequence[NewPet]]]:
        """Yields all animals in batches, each with the number of animals before it.

        Raises OperatorError if the file has changed: no batch is returned before its bytes are known to be those that
        were checked.
        """
        lines = _Lines(self._source)
        pets: list[NewPet] = []
        marks = iter(checked.marks)
        first = 0
        async for count, (_, row) in self._rows(lines):
            if isinstance(row, str):
                raise self._changed()
            pets.append(row)
            if count % BATCH == 0:
                if lines.digest.digest() != next(marks, None):
                    raise self._changed()
                yield first, pets
                first, pets = count, []
        if lines.digest.hexdigest() != checked.sha256:
            raise self._changed()
        yield first, pets

    async def _rows(self, lines: "_Lines") -> AsyncIterator[tuple[int, Row]]:
        """Each row with its line, good or bad, and how many they are so far."""
        self._source.seek(0)
        for count, row in enumerate(self._rows_of(lines), 1):
            if count % 200 == 0:
                await asyncio.sleep(0)  # other tasks of the event loop go on
            yield count, row

    def _changed(self) -> OperatorError:
        return OperatorError(f"{self._name} has changed since it was checked")


async def write_pets(
    page_after: Callable[[int], Awaitable[Page]],
    written_as: Format,
    target: IO[str],
    progress: Callable[[int], None] = lambda count: None,
) -> int:
    """The number of animals written. `progress` is called with it after each page. Raises Unavailable and OSError.

    `page_after` returns up to BATCH animals behind an id, and none only at the end.
    """
    after, count, more = 0, 0, True
    table = csv.writer(target, lineterminator="\n")
    if written_as == "csv":
        table.writerow(COLUMNS)
    while more:
        page, more = await page_after(after)
        if written_as == "csv":
            table.writerows(map(msgspec.structs.astuple, page))
        else:
            target.write("".join(msgspec.json.encode(pet).decode() + "\n" for pet in page))
        after = page[-1].id if page else after
        count += len(page)
        progress(count)
        await asyncio.sleep(0)  # other tasks of the event loop go on; SQLite's pages come without waiting
    return count


class _Lines:
    """The lines of a file, and the number and the digest of the bytes read.

    A line that is too long is cut after LINE_MAX + 1 bytes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0
        self.digest = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        while line := self._piece():
            yield line
            while _too_long(line):
                line = self._piece()

    def whole(self) -> bytes:
        """All of the file. Raises OperatorError when it is larger than JSON_MAX."""
        content = self._counted(self._file.read(JSON_MAX + 1))
        if len(content) > JSON_MAX:
            raise OperatorError(f"larger than {JSON_MAX // 2**20} MiB; write one animal a line, as .jsonl")
        return content

    def _piece(self) -> bytes:
        return self._counted(self._file.readline(LINE_MAX + 1))

    def _counted(self, piece: bytes) -> bytes:
        self.bytes += len(piece)
        self.digest.update(piece)
        return piece


def _too_long(line: bytes) -> bool:
    return len(line) > LINE_MAX and not line.endswith(b"\n")


def _jsonl_rows(lines: _Lines) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        try:
            text = _text_of(line, number)
            if text.strip():
                yield number, parse_new_pet(text.encode())
        except (InvalidBody, OperatorError) as error:
            yield number, str(error).replace("The body", "the line", 1)


def _json_rows(lines: _Lines) -> Iterator[Row]:
    """Of a .json file, which is one array of objects. The line of a row is the one where its object begins."""
    try:
        content = lines.whole()
        rows = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=list[msgspec.Raw])
    except OperatorError as error:
        yield 1, str(error)
        return
    except (msgspec.DecodeError, RecursionError):
        yield 1, "the file is not a valid JSON array"
        return
    number, place, end = 1, 0, 0
    for row in map(bytes, rows):
        start = content.index(row, end)
        number += content.count(b"\n", place, start)
        place, end = start, start + len(row)
        try:
            yield number, parse_new_pet(row)
        except InvalidBody as error:
            yield number, str(error).replace("The body", "the object", 1)


def _csv_rows(lines: _Lines) -> Iterator[Row]:
    """A row takes one line, since a name has no line break. So a quote that is not closed hides no other row."""
    names: list[str] = []
    delimiter = ""
    for number, line in enumerate(lines, 1):
        try:
            text = _text_of(line, number)
            delimiter = delimiter or max(DELIMITERS, key=text.count)  # the most frequent one of the header line
            values = next(csv.reader([text], strict=True, delimiter=delimiter))
            if not names:
                _check_header(values)
                names = values
            elif values:
                yield number, _pet_of(names, values)
        except (InvalidBody, OperatorError, csv.Error) as error:
            said = "not valid CSV, where each row takes one line: " if isinstance(error, csv.Error) else ""
            yield number, f"{said}{error}"
            if not names:
                return
    if not names:
        yield 1, "the header line is missing"


def _text_of(line: bytes, number: int) -> str:
    """Raises OperatorError."""
    if _too_long(line):
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


# An animal as texts, which rows of CSV and forms have


def pet_of_texts(texts: Mapping[str, str]) -> NewPet:
    """From texts by the names of the members. An empty text is no value. Raises InvalidBody."""
    members: dict[str, Any] = {name: texts[name] for name in IMPORTED if texts.get(name)}
    for name in NUMBERS:
        if _WHOLE_NUMBER(members.get(name, "")):
            members[name] = int(members[name])
    return new_pet(members)


def texts_of_pet(pet: Pet) -> dict[str, str]:
    """The texts by the names of the members. A member without a value has an empty text."""
    values = zip(COLUMNS, msgspec.structs.astuple(pet), strict=True)
    return {name: "" if value is None else str(value) for name, value in values}


_WHOLE_NUMBER = re.compile(" *-?[0-9]{1,19} *").fullmatch
