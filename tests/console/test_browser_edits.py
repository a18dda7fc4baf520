"""Two operators edit the same key and animal at the same time in a real Chromium, in separate browser contexts."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from harness.commands import Processes
from harness.consoles import Console, ConsoleClient
from harness.servers import Server

pytestmark = pytest.mark.on("sqlite-lmdb")  # these tests do not depend on the backend


@pytest.fixture(params=[True, False], ids=["scripts", "no-scripts"])
def pages(
    request: pytest.FixtureRequest, browser: Browser, console: Console, new_name: Callable[[], str]
) -> Iterator[tuple[Page, Page]]:
    """Two pages, each with a different operator signed in."""
    contexts = [browser.new_context(java_script_enabled=request.param, base_url=console.origin) for _ in range(2)]
    signed_in = []
    for context in contexts:
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.goto("/")
        page.get_by_label("Your token").fill(console.add_operator(new_name()))
        page.get_by_role("button", name="Sign in").click()
        signed_in.append(page)
    yield signed_in[0], signed_in[1]
    for context in contexts:
        context.close()


def open_both(pages: tuple[Page, Page], path: str) -> None:
    for page in pages:
        page.goto(path)
        if "/keys/" in path:
            page.get_by_text("Change", exact=True).click()


def save(page: Page, said: str) -> None:
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text(said)


def test_two_operators_edit_the_same_key_side_by_side(
    pages: tuple[Page, Page], server: Server, operator: ConsoleClient
) -> None:
    key_id, _ = operator.create_key(name="Ada")
    ada, grace = pages
    open_both(pages, f"/live/keys/{key_id}")
    grace.get_by_label("pro ").check()
    save(grace, "The key was changed.")
    ada.get_by_label("Name").fill("Ada's shop")
    save(ada, "The key was changed.")
    key = Processes(server).json("keys", "show", key_id)
    assert (key["name"], key["plan"]) == ("Ada's shop", "pro"), "a rename has reverted the plan"

    open_both(pages, f"/live/keys/{key_id}")
    grace.get_by_label("business ").check()
    save(grace, "The key was changed.")
    ada.get_by_label("free ").check()
    ada.get_by_role("button", name="Save").click()
    expect(ada.get_by_role("alert")).to_contain_text(" since you opened this form: plan.")
    plans = ada.get_by_role("group", name="Plan")
    expect(plans).to_contain_text("Saved value: business, per minute 1,000, per day 100,000")
    expect(plans.get_by_label("free ")).to_be_checked()
    assert Processes(server).json("keys", "show", key_id)["plan"] == "business"
    save(ada, "The key was changed.")
    assert Processes(server).json("keys", "show", key_id)["plan"] == "free"
    assert Processes(server).entries()[0].detail.startswith("plan business → free; ")


def test_two_operators_edit_the_same_animal_side_by_side(
    pages: tuple[Page, Page], server: Server, operator: ConsoleClient
) -> None:
    pet_id = operator.add_pet("Rex")
    ada, grace = pages
    open_both(pages, f"/live/animals/{pet_id}")
    grace.get_by_label("Status").select_option("sold")
    save(grace, f"Animal {pet_id} was changed.")
    ada.get_by_label("Name").fill("Max")
    save(ada, f"Animal {pet_id} was changed.")
    pet = Processes(server).json("pets", "show", str(pet_id))
    assert (pet["name"], pet["status"]) == ("Max", "sold"), "a rename has reverted the status"

    open_both(pages, f"/live/animals/{pet_id}")
    grace.get_by_label("Name").fill("Bo")
    save(grace, f"Animal {pet_id} was changed.")
    ada.get_by_label("Name").fill("Ed")
    ada.get_by_label("Category id").fill("8")
    ada.get_by_role("button", name="Save").click()
    name = ada.get_by_label("Name Saved value: Bo")
    expect(name).to_have_value("Ed")
    grace.goto(f"/live/animals/{pet_id}")
    grace.get_by_label("Name").fill("Cy")
    save(grace, f"Animal {pet_id} was changed.")
    ada.get_by_role("button", name="Save").click()
    expect(ada.get_by_label("Name Saved value: Cy")).to_have_value("Ed")
    ada.get_by_label("Name").fill("Cy")
    save(ada, f"Animal {pet_id} was changed.")
    pet = Processes(server).json("pets", "show", str(pet_id))
    assert (pet["name"], pet["categoryId"]) == ("Cy", 8)
