"""Animals in files: reads and writes .jsonl and .csv, for the command line and the console."""

import asyncio
import csv
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import IO, Any, Literal, NamedTuple

import msgspec

from petstore.errors import InvalidBody, OperatorError
from petstore.pets import NewPet, Page, new_pet, parse_new_pet

BATCH = 2_000
BAD_ROWS_MAX = 100  # that a message lists
LINE_MAX = 64 * 1024  # bytes: a file of one long line must not fill the memory
COLUMNS = ["id", "name", "categoryId", "status"]
IMPORTED = COLUMNS[1:]  # the catalogue assigns the ids
Format = Literal["jsonl", "csv"]
FORMATS: tuple[Format, ...] = ("jsonl", "csv")
ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
Row = tuple[int, NewPet | str]  # the number of the line, and the animal or the fault


def format_of(name: str) -> Format:
    """The format of a file by its name. Raises OperatorError."""
    for ending, chosen in ENDINGS.items():
        if name.lower().endswith(ending):
            return chosen
    raise OperatorError(f"{name}: the name must end in .jsonl, .ndjson or .csv")


class Checked(NamedTuple):
    """What the first reading of a file has found: that every row is good."""

    animals: int
    sha256: str  # of its bytes


class PetFile:
    """The rows of a file that can be read twice: first it is checked whole, then its animals are added."""

    def __init__(self, name: str, source: IO[bytes]) -> None:
        """Raises OperatorError for a name that does not tell the format."""
        self._name = name
        self._rows_of = {"jsonl": _jsonl_rows, "csv": _csv_rows}[format_of(name)]
        self._source = source

    async def rows(self, lines: "_Lines | None" = None) -> AsyncIterator[Row]:
        """Each row with its line, good or bad."""
        self._source.seek(0)
        for count, row in enumerate(self._rows_of(lines or _Lines(self._source))):
            if count % 200 == 0:
                await asyncio.sleep(0)  # other tasks of the event loop go on
            yield row

    async def check(self, progress: Callable[[int], None] = lambda position: None) -> Checked:
        """Read all of the file. `progress` is called with the number of bytes read so far.

        Raises OperatorError if any row is bad, or if there is no row. The message lists up to BAD_ROWS_MAX bad rows.
        """
        lines = _Lines(self._source)
        bad: list[str] = []
        rows = 0
        async for rows, (number, row) in _counted(self.rows(lines)):
            if isinstance(row, str):
                bad.append(f"\n  line {number}: {row}" if len(bad) < BAD_ROWS_MAX else "")
            if rows % BATCH == 0:
                progress(lines.bytes)
        if bad:
            more = f"\n  and {len(bad) - BAD_ROWS_MAX:,} more" if len(bad) > BAD_ROWS_MAX else ""
            counted = f"{len(bad):,} bad {'row' if len(bad) == 1 else 'rows'}"
            raise OperatorError(f"{self._name}: {counted}, so nothing was imported" + "".join(bad) + more)
        if not rows:
            raise OperatorError(f"no animals in {self._name}")
        progress(lines.bytes)
        return Checked(rows, lines.digest.hexdigest())

    async def chunks(self, checked: Checked, after: int, size: int) -> AsyncIterator[list[NewPet]]:
        """The animals that follow the first `after`, in chunks. Raises OperatorError when the file has changed."""
        lines = _Lines(self._source)
        chunk: list[NewPet] = []
        async for count, (_, row) in _counted(self.rows(lines)):
            if isinstance(row, str):
                raise self._changed()
            if count > after:
                chunk.append(row)
            if len(chunk) == size:
                yield chunk
                chunk = []
        if lines.digest.hexdigest() != checked.sha256:
            raise self._changed()
        if chunk:
            yield chunk

    def _changed(self) -> OperatorError:
        return OperatorError(f"{self._name} has changed while it was imported")


async def _counted(rows: AsyncIterator[Row]) -> AsyncIterator[tuple[int, Row]]:
    count = 0
    async for row in rows:
        count += 1
        yield count, row


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
            table.writerows((pet.id, pet.name, pet.category_id, pet.status) for pet in page)
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

    def _piece(self) -> bytes:
        piece = self._file.readline(LINE_MAX + 1)
        self.bytes += len(piece)
        self.digest.update(piece)
        return piece


def _too_long(line: bytes) -> bool:
    return len(line) > LINE_MAX and not line.endswith(b"\n")


def _jsonl_rows(lines: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        try:
            text = _text_of(line, number)
            if text.strip():
                yield number, parse_new_pet(text.encode())
        except (InvalidBody, OperatorError) as error:
            yield number, str(error).replace("The body", "the line", 1)


def _csv_rows(lines: Iterable[bytes]) -> Iterator[Row]:
    """A row takes one line, since a name has no line break. So a quote that is not closed hides no other row."""
    names: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            values = next(csv.reader([_text_of(line, number)], strict=True))
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
    row = dict(zip(names, values, strict=False))
    members: dict[str, Any] = {name: row[name] for name in IMPORTED if row.get(name)}
    if re.fullmatch("-?[0-9]{1,19}", members.get("categoryId", "")):
        members["categoryId"] = int(members["categoryId"])
    return new_pet(members)
