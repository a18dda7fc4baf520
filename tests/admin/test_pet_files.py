"""Files of animals carry every member: what is exported can be imported."""

import asyncio
import io

import pytest

from petstore.admin.pet_files import EXPORTED, Format, PetFile, write_pets
from petstore.pets import NewPet, Page
from tests.admin.pet_members import FIRST, LEAST, SECOND, changed, with_id

ANIMALS = [FIRST, SECOND, LEAST]


async def exported(written_as: Format) -> str:
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
