"""Files of animals contain every member, and hostile files neither block the event loop nor exhaust the memory."""

import asyncio
import io
import time
import tracemalloc

import pytest

from petstore.errors import OperatorError
from petstore.formats.pet_files import EXPORTED, Format, PetFile, write_pets
from petstore.formats.pet_texts import COLUMNS
from petstore.pets import NewPet, Page, Pet
from tests.pet_members import FIRST, LEAST, SECOND, changed, with_id

ANIMALS = [FIRST, SECOND, LEAST]


async def exported(written_as: Format) -> str:
    missing = set(Pet.__struct_encode_fields__) - set(COLUMNS)
    assert missing == set(), "admin/pet_texts.py: COLUMNS lacks these members"
    page, target = Page([with_id(number, new) for number, new in enumerate(ANIMALS, 1)], more=False), io.StringIO()

    async def page_after(_: int) -> Page:
        return page

    assert await write_pets(page_after, written_as, target) == len(ANIMALS)
    return target.getvalue()


async def imported(name: str, content: str) -> list[NewPet]:
    file = PetFile(name, io.BytesIO(content.encode()))
    checked = await file.check()
    return [new async for _, pets in file.batches(checked) for new in pets]


def changed_members(found: list[NewPet]) -> list[str]:
    return [each for before, after in zip(ANIMALS, found, strict=True) for each in changed(before, after)]


@pytest.mark.parametrize("written_as", EXPORTED)
def test_an_export_can_be_imported_with_every_member(written_as: Format) -> None:
    found = asyncio.run(imported(f"animals.{written_as}", asyncio.run(exported(written_as))))
    assert changed_members(found) == [], "files lose these members"


def test_an_array_of_exported_objects_can_be_imported_with_every_member() -> None:
    lines = asyncio.run(exported("jsonl")).splitlines()
    found = asyncio.run(imported("animals.json", f"[{','.join(lines)}]"))
    assert changed_members(found) == [], "files lose these members"


def test_a_number_in_csv_may_have_spaces_around_it() -> None:
    assert asyncio.run(imported("x.csv", "name,categoryId\nRex, 7 \n")) == [NewPet("Rex", 7)]


MEBIBYTE = 1024 * 1024
HOSTILE = {
    "blank lines": ("x.jsonl", b"\n" * 2 * MEBIBYTE),
    "blank lines of CSV": ("x.csv", b"name,categoryId\n" + b"\n" * 2 * MEBIBYTE),
    "one line": ("x.jsonl", b"x" * 48 * MEBIBYTE),
    "an array of zeros": ("x.json", b"[" + b"0," * 4 * MEBIBYTE + b"0]"),
    "lines of zeros": ("x.jsonl", b"0\n" * 4 * MEBIBYTE),
    "one string": ("x.json", b'["' + b"x" * 48 * MEBIBYTE + b'"]'),
    "brackets": ("x.json", b"[" * 8 * MEBIBYTE),
    "white space": ("x.json", b"[" + b" " * 48 * MEBIBYTE + b"]"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_other_tasks_run_while_a_hostile_file_is_checked(kind: str) -> None:
    """Reading 8 MiB of blank lines in the event loop would block it for 30 s."""
    name, content = HOSTILE[kind]

    async def work() -> float:
        checking = asyncio.create_task(PetFile(name, io.BytesIO(content)).check())
        longest, last = 0.0, time.monotonic()
        while not checking.done():
            await asyncio.sleep(0.001)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        with pytest.raises(OperatorError):
            await checking
        return longest

    assert asyncio.run(work()) < 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if "blank" not in kind])  # too slow under tracemalloc
def test_a_hostile_file_takes_little_memory(kind: str) -> None:
    name, content = HOSTILE[kind]
    source = io.BytesIO(content)  # shares the memory of `content`
    tracemalloc.start()
    try:
        with pytest.raises(OperatorError):
            asyncio.run(PetFile(name, source).check())
        assert tracemalloc.get_traced_memory()[1] < 16 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_checking_can_be_cancelled_between_two_steps() -> None:
    name, content = HOSTILE["blank lines"]

    async def work() -> int:
        positions: list[int] = []
        checking = asyncio.create_task(PetFile(name, io.BytesIO(content)).check(positions.append))
        while not positions:
            await asyncio.sleep(0)
        checking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checking
        return positions[-1]

    assert asyncio.run(work()) <= MEBIBYTE
