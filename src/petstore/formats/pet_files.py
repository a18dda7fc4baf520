"""Reads animals from .jsonl, .csv and .json files, and writes them to .jsonl and .csv files."""

import asyncio
import csv
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, Any, Literal, NamedTuple

import msgspec

from petstore.errors import OperatorError
from petstore.formats.pet_rows import Reading, Row, csv_rows, json_rows, jsonl_rows, quoted
from petstore.formats.pet_texts import COLUMNS, ORIGIN_COLUMNS
from petstore.pets import NewPet, Origin, Page

BATCH = 2_000  # rows read at a time
LISTED_MAX = 100  # maximum number of bad rows listed in a message
BAD_ROWS_MAX = 10_000  # checking stops after this many bad rows
COLUMNS_LISTED_MAX = 10  # maximum number of unknown columns listed in a message
MARK = 16  # bytes of the running digest to keep per BATCH of rows; about 30 MiB in total for a 100 GiB file
Format = Literal["jsonl", "csv", "json"]
FORMATS: tuple[Format, ...] = ("jsonl", "csv", "json")
EXPORTED: tuple[Format, ...] = ("jsonl", "csv")
ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".json": "json"}


def format_of(name: str, among: Sequence[Format] = FORMATS) -> Format:
    """Returns a file's format, based on its name. Raises OperatorError if the extension is unknown."""
    for ending, chosen in ENDINGS.items():
        if name.lower().endswith(ending) and chosen in among:
            return chosen
    *others, last = (ending for ending, chosen in ENDINGS.items() if chosen in among)
    raise OperatorError(f"{name}: the name must end in {', '.join(others)} or {last}")


class Checked(NamedTuple):
    """The result of checking a file."""

    animals: int
    bad_rows: int  # if this is BAD_ROWS_MAX, the rest of the file was not read
    sha256: str  # of the whole file
    marks: bytes  # the first MARK bytes of the running digest after each BATCH of rows
    unknown_columns: list[str]  # columns that the import ignores; always empty unless the file is a .csv file

    @property
    def warning(self) -> str:
        """A warning about unknown columns, or an empty string if there are none."""
        names = ", ".join(map(quoted, self.unknown_columns[:COLUMNS_LISTED_MAX]))
        if len(self.unknown_columns) > COLUMNS_LISTED_MAX:
            names += " …"
        subject, verb = ("columns", "are") if len(self.unknown_columns) > 1 else ("column", "is")
        return f"Warning: unknown {subject} {names} {verb} ignored." if names else ""


class PetFile:
    """A file of animals. It is read once to check all rows, and again to add the animals.

    Each read runs in a thread and returns at most one block or BATCH rows, so the event loop never waits for the disk.
    """

    def __init__(self, name: str, source: IO[bytes], written_as: Format | None = None) -> None:
        """`written_as` defaults to `format_of(name)`, which raises OperatorError if the extension is unknown."""
        self._name = name
        self._rows_of = {"jsonl": jsonl_rows, "csv": csv_rows, "json": json_rows}[written_as or format_of(name)]
        self._source = source

    async def read(
        self, bad: Callable[[int, str], None], progress: Callable[[int], None] = lambda position: None
    ) -> Checked:
        """Reads and checks the file. Stops after BAD_ROWS_MAX bad rows.

        Calls `bad` with the line number of each bad row and a description of the error. Calls `progress` with the
        number of bytes read so far.
        """
        reading = Reading(self._source)
        rows, bad_rows, marks = 0, 0, bytearray()
        async for step in self._steps(reading):
            for number, row in step:
                rows += 1
                if isinstance(row, str) and bad_rows < BAD_ROWS_MAX:
                    bad_rows += 1
                    bad(number, row)
            progress(reading.bytes)
            if bad_rows == BAD_ROWS_MAX:
                break
            if step and rows % BATCH == 0:
                marks += reading.digest.digest()[:MARK]
        return Checked(rows - bad_rows, bad_rows, reading.digest.hexdigest(), bytes(marks), reading.unknown_columns)

    async def check(self, progress: Callable[[int], None] = lambda position: None) -> Checked:
        """Checks the file.

        Raises OperatorError if any row is bad or there are no rows. The message lists up to LISTED_MAX bad rows.
        """
        listed: list[str] = []

        def bad(number: int, fault: str) -> None:
            if len(listed) < LISTED_MAX:
                listed.append(f"\n  line {number}: {fault}")

        checked = await self.read(bad, progress)
        if checked.bad_rows:
            more = checked.bad_rows - len(listed)
            hint = f"\n  and {more:,} more; `petstore pets import FILE --dry-run` lists them" if more else ""
            counted = f"{checked.bad_rows:,} bad {'row' if checked.bad_rows == 1 else 'rows'}"
            stopped = "checking stopped after " if checked.bad_rows == BAD_ROWS_MAX else ""
            raise OperatorError(f"{self._name}: {stopped}{counted}, so nothing was imported" + "".join(listed) + hint)
        if not checked.animals:
            raise OperatorError(f"no animals in {self._name}")
        return checked

    async def batches(self, checked: Checked) -> AsyncIterator[tuple[int, Sequence[NewPet]]]:
        """Yields all animals in batches, each with the number of animals that precede it.

        Verifies the digest of each batch before yielding it. Raises OperatorError if the file has changed since it was
        checked.
        """
        reading = Reading(self._source)
        first, pets, place = 0, list[NewPet](), 0
        async for step in self._steps(reading):
            for _, row in step:
                if isinstance(row, str):
                    raise self._changed()
                pets.append(row)
            if len(pets) == BATCH:
                if reading.digest.digest()[:MARK] != checked.marks[place : place + MARK]:
                    raise self._changed()
                yield first, pets
                first, pets, place = first + BATCH, [], place + MARK
        if reading.digest.hexdigest() != checked.sha256:
            raise self._changed()
        yield first, pets

    async def _steps(self, reading: Reading) -> AsyncIterator[list[Row]]:
        """Yields the rows, good and bad, in lists. A list never spans two blocks or two batches of BATCH rows."""
        rows = iter(self._rows_of(reading))
        count, ended = 0, False
        while not ended:
            step, ended = await asyncio.to_thread(_next_step, rows, BATCH - count % BATCH)
            count += len(step)
            yield step

    def _changed(self) -> OperatorError:
        return OperatorError(f"{self._name} has changed since it was checked")


def _next_step(rows: Iterator[Row | None], most: int) -> tuple[list[Row], bool]:
    """Returns up to `most` rows from one block, and whether the end of the file was reached."""
    step: list[Row] = []
    for row in islice(rows, most):
        if row is None:
            return step, False
        step.append(row)
    return step, len(step) < most


async def write_pets(
    page_after: Callable[[int], Awaitable[Page]],
    written_as: Format,
    target: IO[str],
    progress: Callable[[int], None] = lambda count: None,
    origins: Callable[[Sequence[int]], Awaitable[Mapping[int, Origin]]] | None = None,
) -> int:
    """Writes animals to a file and returns how many were written.

    `page_after(id)` returns the next page of animals, whose ids are higher than `id`. Calls `progress` after each page
    with the number of animals written so far. If `origins` is given, also writes who added each animal and when.
    Raises Unavailable, or OSError if the file cannot be written.
    """
    after, count, more = 0, 0, True
    columns = (*COLUMNS, *ORIGIN_COLUMNS) if origins else COLUMNS
    table = csv.writer(target, lineterminator="\n")
    if written_as == "csv":
        table.writerow(columns)
    while more:
        page, more = await page_after(after)
        rows: list[tuple[Any, ...]] = [msgspec.structs.astuple(pet) for pet in page]
        if origins:
            found = await origins([pet.id for pet in page])
            rows = [(*row, *_origin_texts(found.get(pet.id))) for pet, row in zip(page, rows, strict=True)]
        if written_as == "csv":
            table.writerows(rows)
        else:
            objects = (msgspec.json.encode(dict(zip(columns, row, strict=True))) for row in rows)
            target.write("".join(each.decode() + "\n" for each in objects))
        after = page[-1].id if page else after
        count += len(page)
        progress(count)
        await asyncio.sleep(0)  # let other tasks run, because reads from SQLite never yield to the event loop
    return count


def _origin_texts(origin: Origin | None) -> tuple[str | None, str | None]:
    """Returns the values for ORIGIN_COLUMNS in an exported file, with the time in ISO 8601 format."""
    if origin is None:
        return None, None
    by = origin.adder.name if origin.adder else None
    return by, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(origin.at))


def origin_members(origin: Origin | None) -> dict[str, str | int | None]:
    """Returns the values for ORIGIN_COLUMNS, by name. `origin` is None if the animal has just been removed."""
    values = (origin.adder.name if origin.adder else None, origin.at) if origin else (None, None)
    return dict(zip(ORIGIN_COLUMNS, values, strict=True))
