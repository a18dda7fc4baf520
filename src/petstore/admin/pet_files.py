"""Animals in files: reads and writes .jsonl and .csv, for the command line and the console."""

import asyncio
import csv
import hashlib
import io
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Literal

import msgspec

from petstore.errors import InvalidBody, OperatorError
from petstore.pets import Catalogue, NewPet, Pet, new_pet, parse_new_pet

BATCH = 2_000
BAD_ROWS_MAX = 100  # that a message lists
LINE_MAX = 64 * 1024  # bytes: a file of one long line must not fill the memory
COLUMNS = ["id", "name", "categoryId", "status"]
IMPORTED = COLUMNS[1:]  # the catalogue assigns the ids
Form = Literal["jsonl", "csv"]
FORMS: tuple[Form, ...] = ("jsonl", "csv")
Row = tuple[int, NewPet | str]  # the number of the line, and the animal or the fault


def form_of(name: str) -> Form:
    """The format of a file by its name. Raises OperatorError."""
    for form in FORMS:
        if name.lower().endswith("." + form):
            return form
    raise OperatorError(f"{name}: the name must end in .jsonl or .csv")


class PetFile:
    """The rows of a file, which are read once, from its beginning to its end."""

    def __init__(self, name: str, source: IO[bytes]) -> None:
        """Raises OperatorError for a name that does not tell the format."""
        self._name = name
        self._rows_of = {"jsonl": _jsonl_rows, "csv": _csv_rows}[form_of(name)]
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

        Raises OperatorError after the last row if any row is bad. The message lists up to BAD_ROWS_MAX of them.
        """
        batch: list[NewPet] = []
        bad: list[str] = []
        faults = 0
        async for number, row in self.rows():
            if isinstance(row, str):
                faults += 1
                if faults <= BAD_ROWS_MAX:
                    bad.append(f"\n  line {number}: {row}")
                continue
            batch.append(row)
            if len(batch) == BATCH:
                progress(self._lines.bytes)
                if not bad:
                    yield batch
                batch = []
        if bad:
            rows = "row" if faults == 1 else "rows"
            more = f"\n  and {faults - BAD_ROWS_MAX:,} more" if faults > BAD_ROWS_MAX else ""
            raise OperatorError(f"{self._name}: {faults:,} bad {rows}, so nothing was imported" + "".join(bad) + more)
        yield batch
        progress(self._lines.bytes)


def batches(
    name: str, source: IO[bytes], progress: Callable[[int], None] = lambda position: None
) -> AsyncIterator[list[NewPet]]:
    """The batches of a PetFile. Raises OperatorError."""
    return PetFile(name, source).batches(progress)


async def write_pets(
    catalogue: Catalogue, form: Form, target: IO[str], progress: Callable[[int], None] = lambda count: None
) -> int:
    """The number of animals written. `progress` is called with it after each page. Raises Unavailable and OSError."""
    after, count, more = 0, 0, True
    if form == "csv":
        target.write(",".join(COLUMNS) + "\n")
    while more:
        page, more = await catalogue.page(after=after, limit=BATCH, status=None)
        target.write(_LINES[form](page))
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


_LINES: dict[Form, Callable[[Sequence[Pet]], str]] = {"jsonl": _as_jsonl, "csv": _as_csv}


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
                yield number, parse_new_pet(line)
            except InvalidBody as error:
                yield number, error.message.replace("The body", "the line", 1)


def _csv_rows(source: Iterable[bytes]) -> Iterator[Row]:
    table = csv.DictReader(_texts(source), strict=True)
    try:
        names = table.fieldnames or ()
        if fault := _fault_of(names):
            yield 1, fault
            return
        for row in table:
            if None in row:
                yield table.line_num, f"there are more values than the {len(names)} columns of the header line"
                continue
            members: dict[str, Any] = {name: row[name] for name in IMPORTED if row.get(name)}
            if re.fullmatch("-?[0-9]{1,19}", members.get("categoryId", "")):
                members["categoryId"] = int(members["categoryId"])
            try:
                yield table.line_num, new_pet(members)
            except InvalidBody as error:
                yield table.line_num, error.message
    except UnicodeDecodeError:
        yield table.line_num + 1, "not valid UTF-8"
    except _LineTooLong:
        yield table.line_num + 1, _TOO_LONG
    except csv.Error as error:
        yield table.line_num, f"not valid CSV: {error}"


class _LineTooLong(Exception):
    """The rest of a table cannot be read: the line may contain quoted ends of lines."""


def _texts(source: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(source):
        if _too_long(line):
            raise _LineTooLong
        yield line.decode("utf-8" if number else "utf-8-sig")


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
