"""The console supports every member of an animal: in the table, in both forms, and on the page of an animal."""

import re
from collections.abc import Callable

import httpx
import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from harness.consoles import Console, ConsoleClient, text_of
from harness.servers import Server
from harness.stores import BY
from petstore.formats.pet_texts import IMPORTED
from petstore.operators import Role
from petstore.pets import NewPet, Pet
from tests.console.browser_steps import open_section
from tests.pet_members import FIRST, LEAST, MEMBERS, SECOND, changed, lacking, texts, with_id


def added(server: Server, new: NewPet) -> Pet:
    return server.act(lambda backends: backends.stores["live"].pets.add_by_hand(new, BY))


def read(server: Server, pet_id: int) -> Pet:
    pet = server.act(lambda backends: backends.stores["live"].pets.get(pet_id))
    assert pet is not None
    return pet


def plain(markup: str) -> str:
    return text_of(httpx.Response(200, text=markup))


# The table


def titles(page: httpx.Response) -> list[str]:
    return [plain(title) for title in re.findall(r"<th\b[^>]*>(.*?)</th>", page.text, re.DOTALL)]


def cells_of(page: httpx.Response, pet_id: int) -> dict[str, str]:
    """Returns the texts in an animal's row by their labels for narrow screens. The check box has no label."""
    (row,) = re.findall(rf'<tr id="animal-{pet_id}"(.*?)</tr>', page.text, re.DOTALL)
    found = re.findall(r"<td\b([^>]*)>(.*?)</td>", row, re.DOTALL)
    labels = [re.search(r'data-label="([^"]*)"', attributes) for attributes, _ in found]
    return {label[1] if label else "Selected": plain(cell) for label, (_, cell) in zip(labels, found, strict=True)}


@pytest.fixture(params=["operator", "viewer"])
def client(request: pytest.FixtureRequest, console: Console, new_name: Callable[[], str]) -> ConsoleClient:
    role: Role = request.param
    return console.sign_in(new_name(), role)


def test_the_table_has_a_cell_and_a_title_for_every_member(server: Server, client: ConsoleClient) -> None:
    first, least = added(server, FIRST), added(server, LEAST)
    page = client.get(f"/live/animals?q={first.id}")
    cells = cells_of(page, first.id)
    values = msgspec.to_builtins(first)
    without = [name for name, value in values.items() if str(value) not in cells.values()]
    assert without == [], "pets/row.html has no cell for these members"
    assert titles(page) == list(cells), "PET_TITLES of console/rendering.py differ from the cells of pets/row.html"
    cells = cells_of(client.get(f"/live/animals?q={least.id}"), least.id)
    assert [title for title, text in cells.items() if text == "None"] == [], "a cell without a value must be empty"


def test_a_row_without_an_animal_is_as_wide_as_the_table(server: Server, client: ConsoleClient) -> None:
    server.fill(60, "staging")
    for path, kind in (("/staging/animals", "more"), ("/live/animals?q=no such animal", "no-rows")):
        page = client.get(path)
        (width,) = re.findall(rf'<tr class="{kind}".*?colspan="(\d+)"', page.text, re.DOTALL)
        assert int(width) == len(titles(page)), f"the colspan of {kind} in pets/rows.html does not match the table"


# The page of one animal


def test_the_page_of_an_animal_shows_every_member(server: Server, client: ConsoleClient) -> None:
    for new in (FIRST, LEAST):
        pet = added(server, new)
        page = client.get(f"/live/animals/{pet.id}").text
        (heading,) = re.findall(r"<h1\b.*?</h1>", page, re.DOTALL)
        (facts,) = re.findall(r'<dl class="panel facts">.*?</dl>', page, re.DOTALL)
        shown = plain(heading + facts)
        assert "None" not in shown
        assert new is LEAST or lacking(shown, pet) == [], "the facts of pets/show.html lack these members"


def test_the_page_of_a_removed_animal_shows_every_member(
    server: Server, operator: ConsoleClient, client: ConsoleClient
) -> None:
    for new in (FIRST, LEAST):
        pet = added(server, new)
        operator.submit(f"/live/animals/{pet.id}/remove")
        page = client.get(f"/live/animals/{pet.id}").text
        (message,) = re.findall(r'<div class="message error".*?</div>', page, re.DOTALL)
        assert "None" not in plain(message)
        assert new is LEAST or lacking(plain(message), pet) == [], "the removed animal of pets/show.html lacks these"


# The forms, in a real Chromium


def fill(form: Locator, new: NewPet) -> None:
    for name, text in texts(new).items():
        control = control_of(form, name)
        if control.evaluate("element => element.tagName") == "SELECT":
            control.select_option(text)
        else:
            control.fill(text)


def control_of(form: Locator, name: str) -> Locator:
    control = form.locator(f'[name="{name}"]')
    assert control.count() == 1, f"the form has no input for {name}: see pets/fields.html"
    return control


def shown_in(form: Locator) -> dict[str, str]:
    return {each.encode_name: control_of(form, each.encode_name).input_value() for each in MEMBERS}


@pytest.mark.on("sqlite-lmdb")
def test_what_is_typed_in_the_forms_arrives(page: Page, server: Server) -> None:
    open_section(page, "Animals")
    page.get_by_text("Add an animal").click()
    fill(page.locator("#add form"), FIRST)
    page.get_by_role("button", name="Add to live").click()
    page.get_by_role("status").get_by_role("link", name="Show").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(FIRST.name)
    pet_id = int(page.url.rpartition("/")[2])
    assert changed(with_id(pet_id, FIRST), read(server, pet_id)) == [], "the form that adds an animal lost these values"

    form = page.locator("form", has=page.get_by_role("button", name="Save"))
    assert shown_in(form) == texts(FIRST), "the edit form does not start with the animal's values"
    fill(form, SECOND)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text(f"Animal {pet_id} was changed.")
    assert changed(with_id(pet_id, SECOND), read(server, pet_id)) == [], "the edit form lost these values"


def test_the_edit_form_shows_the_saved_value_of_every_member(
    server: Server, operator: ConsoleClient, console: Console, new_name: Callable[[], str]
) -> None:
    pet = added(server, msgspec.structs.replace(LEAST, name="Third", category_id=473))
    path, base = f"/live/animals/{pet.id}", msgspec.json.encode(pet).decode()
    console.sign_in(new_name()).submit(path, **texts(SECOND), base=base)
    refused = operator.post(path, **texts(FIRST), base=base)
    shown = re.findall(r"Saved value: <bdi>(.*?)</bdi>", refused.text)
    assert sorted(shown) == sorted(texts(SECOND).values()), "pets/fields.html lacks a saved_value"


@pytest.mark.on("sqlite-lmdb")
def test_an_animal_with_only_what_is_required_can_be_saved_as_it_is(page: Page, server: Server) -> None:
    pet = added(server, LEAST)
    page.goto(f"{page.url.partition('/live')[0]}/live/animals/{pet.id}")
    form = page.locator("form", has=page.get_by_role("button", name="Save"))
    shown = {name: text for name, text in shown_in(form).items() if text}
    assert shown == texts(LEAST)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text(f"Animal {pet.id} was changed.")
    assert changed(pet, read(server, pet.id)) == []


@pytest.mark.on("sqlite-lmdb")
def test_a_refused_form_keeps_what_was_typed_for_every_member(page: Page) -> None:
    open_section(page, "Animals")
    page.get_by_text("Add an animal").click()
    form = page.locator("#add form")
    fill(form, FIRST)
    form.locator('[name="name"]').fill(" ")
    page.get_by_role("button", name="Add to live").click()
    expect(page.get_by_role("alert")).to_contain_text("name must not be empty")
    assert shown_in(form) == {**texts(FIRST), "name": " "}


def test_the_hint_on_files_names_every_column(operator: ConsoleClient) -> None:
    hint = text_of(operator.get("/live/animals"))
    assert f"CSV file with the header {','.join(IMPORTED)} and" in hint
