"""Animals in files: reads and writes .jsonl and .csv, for the command line and the console."""

import asyncio
import codecs
import csv
import hashlib
import io
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Literal

import msgspec

from petstore.errors import InvalidBody, OperatorError
from petstore.pets import NewPet, Page, Pet, new_pet, parse_new_pet

BATCH = 2_000
BAD_ROWS_MAX = 100  # that a message lists
LINE_MAX = 64 * 1024  # bytes: a file of one long line must not fill the memory
ROW_LINES_MAX = 100  # of a CSV row: after an open quote, the lines behind it are read again for each row
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


class PetFile:
    """The rows of a file, which are read once, from its beginning to its end."""

    def __init__(self, name: str, source: IO[bytes]) -> None:
        """Raises OperatorError for a name that does not tell the format."""
        self._name = name
        self._rows_of = {"jsonl": _jsonl_rows, "csv": _csv_rows}[format_of(name)]
        self._lines = _Lines(source)

    def sha256(self) -> str:
        """Of the bytes that were read: of all bytes after the last row."""
        return self._lines.digest.hexdigest()

    async def rows(self) -> AsyncIterator[Row]:
        """Each row with its line, good or bad."""
        for count, row in enumerate(self._rows_of(self._lines)):
            if count % 200 == 0:
                await asyncio.sleep(0)  # other tasks of the event loop go on
            yield row
        self._lines.read_all()

    async def batches(self, progress: Callable[[int], None] = lambda position: None) -> AsyncIterator[list[NewPet]]:
        """The animals in batches. `progress` is called with the number of bytes read so far.

        Raises OperatorError after the last row if any row is bad, or if there is no row. The message lists up to
        BAD_ROWS_MAX bad rows.
        """
        batch: list[NewPet] = []
        bad: list[str] = []
        faults = good = 0
        async for number, row in self.rows():
            if isinstance(row, str):
                faults += 1
                if faults <= BAD_ROWS_MAX:
                    bad.append(f"\n  line {number}: {row}")
                continue
            batch.append(row)
            good += 1
            if len(batch) == BATCH:
                progress(self._lines.bytes)
                if not bad:
                    yield batch
                batch = []
        if bad:
            rows = "row" if faults == 1 else "rows"
            more = f"\n  and {faults - BAD_ROWS_MAX:,} more" if faults > BAD_ROWS_MAX else ""
            raise OperatorError(f"{self._name}: {faults:,} bad {rows}, so nothing was imported" + "".join(bad) + more)
        if not good:
            raise OperatorError(f"no animals in {self._name}")
        yield batch
        progress(self._lines.bytes)


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
    if written_as == "csv":
        target.write(",".join(COLUMNS) + "\n")
    while more:
        page, more = await page_after(after)
        target.write(_LINES[written_as](page))
        after = page[-1].id if page else after
        count += len(page)
        progress(count)
        await asyncio.sleep(0)  # other tasks of the event loop go on; SQLite's pages come without waiting
    return count


def _as_jsonl(pets: Sequence[Pet]) -> str:
    return "".join(msgspec.json.encode(pet).decode() + "\n" for pet in pets)


def _as_csv(pets: Sequence[Pet]) -> str:
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows((p.id, p.name, p.category_id, p.status) for p in pets)
    return lines.getvalue()


_LINES: dict[Format, Callable[[Sequence[Pet]], str]] = {"jsonl": _as_jsonl, "csv": _as_csv}


class _Lines:
    """The lines of a file, and the number and the digest of the bytes read: not every source can be read again.

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

    def read_all(self) -> None:
        """Read what is left: a table may end before the file does."""
        while self._piece():
            pass


def _too_long(line: bytes) -> bool:
    return len(line) > LINE_MAX and not line.endswith(b"\n")


_TOO_LONG = f"longer than {LINE_MAX // 1024} KiB; one animal a line"


def _jsonl_rows(source: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(source, 1):
        if _too_long(line):
            yield number, _TOO_LONG
        elif line.strip():
            try:
                yield number, parse_new_pet(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)
            except InvalidBody as error:
                yield number, error.message.replace("The body", "the line", 1)


def _csv_rows(source: Iterable[bytes]) -> Iterator[Row]:
    """After a row that is not valid the table is read on from the line after the first of that row.

    So a quote that is not closed hides no other row.
    """
    lines = _CsvLines(source)
    table = csv.reader(lines, strict=True)
    names: list[str] | None = None
    while True:
        lines.begin_row()
        fault, values = "", list[str]()
        try:
            values = next(table)
        except StopIteration:
            break
        except _RowTooLong:
            fault = _TOO_LONG if lines.count == 1 else f"not valid CSV: {_OPEN_QUOTE}"
        except csv.Error as error:
            fault = f"not valid CSV: {_OPEN_QUOTE if lines.at_end else error}"
        number = lines.first
        if lines.not_utf8 is not None and (not fault or lines.not_utf8 == number):
            number, fault = lines.not_utf8, "not valid UTF-8"
        elif fault:
            lines.return_all_but_first()
        if names is None:
            if fault := fault or _fault_of(values) or "":
                yield number, fault
                return
            names = values
        elif fault:
            yield number, fault
        elif values:
            yield number, _pet_of(names, values)
    if names is None:
        yield 1, _fault_of(()) or ""


def _pet_of(names: list[str], values: list[str]) -> NewPet | str:
    """The animal or the fault."""
    if len(values) > len(names):
        return f"there are more values than the {len(names)} columns of the header line"
    row = dict(zip(names, values, strict=False))
    members: dict[str, Any] = {name: row[name] for name in IMPORTED if row.get(name)}
    if re.fullmatch("-?[0-9]{1,19}", members.get("categoryId", "")):
        members["categoryId"] = int(members["categoryId"])
    try:
        return new_pet(members)
    except InvalidBody as error:
        return error.message


_OPEN_QUOTE = "a quote is not closed"


class _RowTooLong(Exception):
    """The lines of a row have more than LINE_MAX bytes together, or are more than ROW_LINES_MAX."""


class _CsvLines:
    """The lines of a table, for csv.reader. It knows the lines of the present row, and can return them."""

    def __init__(self, source: Iterable[bytes]) -> None:
        self._source = enumerate(source, 1)
        self._returned: deque[tuple[int, bytes]] = deque()
        self.begin_row()

    def begin_row(self) -> None:
        self._row: list[tuple[int, bytes]] = []
        self._bytes = 0
        self.at_end = False
        self.not_utf8: int | None = None  # the number of the line

    @property
    def first(self) -> int:
        """The number of the row's first line."""
        return self._row[0][0]

    @property
    def count(self) -> int:
        return len(self._row)

    def return_all_but_first(self) -> None:
        """The next row begins with the second line of this one."""
        self._returned.extendleft(reversed(self._row[1:]))

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Raises _RowTooLong."""
        try:
            number, line = self._returned.popleft() if self._returned else next(self._source)
        except StopIteration:
            self.at_end = True
            raise
        self._row.append((number, line))
        self._bytes += len(line)
        if (self._bytes > LINE_MAX and (len(self._row) > 1 or _too_long(line))) or len(self._row) > ROW_LINES_MAX:
            raise _RowTooLong
        encoding = "utf-8" if number > 1 else "utf-8-sig"
        try:
            return line.decode(encoding)
        except UnicodeDecodeError:
            self.not_utf8 = self.not_utf8 or number
            return line.decode(encoding, "replace")  # it still shows where the row ends


def _fault_of(header: Sequence[str]) -> str | None:
    """Refuses a misspelled column, which would otherwise be ignored. Other columns are ignored."""
    for name in IMPORTED:
        alike = [column for column in header if column.strip().lower() == name.lower()]
        if len(alike) > 1:
            return f"the header line has {name} more than once"
        if alike and alike != [name]:
            return f'the header line has "{alike[0]}" where {name} is expected'
    missing = [name for name in ("categoryId", "name") if name not in header]
    return f"the header line lacks {' and '.join(missing)}" if missing else None
