"""The main actions in a real Chromium, with a running service that applies each change."""

import json
import re
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Page, expect

from harness.commands import Commands
from harness.servers import Server
from harness.wire import asking
from petstore.plans import Limits
from tests.console.browser_steps import add_pet, open_section

pytestmark = pytest.mark.on("sqlite-lmdb")  # these tests are slow and do not depend on the backend


def test_animals_are_added_found_and_changed(page: Page, server: Server) -> None:
    open_section(page, "Animals")
    mark = f"Browser {time.time_ns()}"
    numbers = [add_pet(page, f"{mark} {i}") for i in range(3)]
    page.get_by_label("Name or id").press_sequentially(mark.lower())
    # Wait for the search for the whole text, because the response to a shorter text may arrive first.
    expect(page).to_have_url(re.compile(f"q={quote(mark.lower())}&"))
    expect(page.locator("#rows tr")).to_have_count(3)
    expect(page.locator("#total")).to_have_text("3 animals match")
    button = page.get_by_role("group", name="Change the selected").get_by_role("button", name="sold")
    expect(button).to_be_disabled()
    page.get_by_label(f"Select animal {numbers[0]}").check()
    page.get_by_label("Name or id").fill(f"{mark} 0")
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.locator("#total")).to_have_text("1 animal matches")
    expect(page.get_by_text("Change 1 selected to")).to_be_visible()
    expect(page.get_by_label("all shown")).to_be_checked()
    page.get_by_label("Name or id").fill(mark)
    expect(page.locator("#rows tr")).to_have_count(3)
    page.get_by_label(f"Select animal {numbers[1]}").check()
    expect(page.get_by_text("Change 2 selected to")).to_be_visible()
    button.click()
    expect(page.get_by_role("status")).to_contain_text("2 animals are now sold.")
    expect(page.locator(f"#animal-{numbers[0]} .badge")).to_have_text("sold")
    expect(page.locator(f"#animal-{numbers[2]} .badge")).to_have_text("available")
    page.get_by_label("all shown").check()
    expect(page.get_by_text("Change 3 selected to")).to_be_visible()
    page.get_by_role("group", name="Change the selected").get_by_role("button", name="pending").click()
    expect(page.get_by_role("status")).to_contain_text("3 animals are now pending.")
    expect(page.get_by_label("all shown")).not_to_be_checked()
    headers = server.key().headers
    assert httpx.get(server.url(f"/pets/{numbers[0]}"), headers=headers, verify=False).json()["status"] == "pending"


def test_a_file_is_imported_and_exported(page: Page, tmp_path: Path) -> None:
    open_section(page, "Animals")
    file = tmp_path / "animals.jsonl"
    file.write_text("\n".join(json.dumps({"name": f"File {i}", "categoryId": i}) for i in range(3_000)))
    page.get_by_text("Import a file", exact=True).click()
    page.get_by_label("File (.jsonl, .csv or .json)").set_input_files(file)
    page.get_by_role("button", name="Import into live").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Importing animals.jsonl")
    expect(page.get_by_text("3,000 animals were added to live.")).to_be_visible()
    page.goto(page.url.partition("/jobs")[0] + "/animals")
    page.locator("#export summary").click()
    page.get_by_label("Format").select_option("CSV")
    page.get_by_role("button", name="Export live").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download animals-live.csv").click()
    assert Path(download.value.path()).read_text().count(",File ") >= 3_000


def test_a_file_that_was_imported_before_needs_a_confirmation(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "again.jsonl"
    file.write_text(json.dumps({"name": f"Again {time.time_ns()}", "categoryId": 1}))
    for number in range(2):
        open_section(page, "Animals")
        page.get_by_text("Import a file", exact=True).click()
        page.get_by_label("File (.jsonl, .csv or .json)").set_input_files(file)
        page.get_by_role("button", name="Import into live").click()
        if number:
            expect(page.get_by_text("again.jsonl has already been imported")).to_be_visible()
            expect(page.get_by_role("link", name="Show the earlier import")).to_be_visible()
            page.get_by_role("button", name="Import again").click()
        expect(page.get_by_text("1 animal was added to live.")).to_be_visible()


def test_an_import_is_undone_with_a_button(page: Page, tmp_path: Path) -> None:
    open_section(page, "Animals")
    mark = f"Mistake {time.time_ns()}"
    file = tmp_path / f"{mark}.jsonl"
    file.write_text("\n".join(json.dumps({"name": mark, "categoryId": i}) for i in range(5_000)))
    page.get_by_text("Import a file", exact=True).click()
    page.get_by_label("File (.jsonl, .csv or .json)").set_input_files(file)
    page.get_by_role("button", name="Import into live").click()
    page.get_by_role("link", name="Show the import").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Import of {mark}.jsonl")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Undo").click()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("5,000 animals were removed from live.")).to_be_visible()
    page.get_by_role("link", name="Show the import").click()
    expect(page.get_by_text("This import was undone.")).to_be_visible()
    open_section(page, "Animals")
    page.get_by_label("Name or id").fill(mark)
    expect(page.get_by_text("No matching animals")).to_be_visible()


def test_a_removed_animal_is_restored_from_its_page_and_from_the_audit_log(page: Page, server: Server) -> None:
    open_section(page, "Animals")
    number = add_pet(page, f"Removed {time.time_ns()}")
    headers = server.key().headers

    def status() -> int:
        return httpx.get(server.url(f"/pets/{number}"), headers=headers, verify=False).status_code

    address = f"{page.url.partition('?')[0]}/{number}"
    page.goto(address)
    page.get_by_role("button", name="Remove this animal").click()
    expect(page.get_by_role("status")).to_contain_text(f"Animal {number} was removed.")
    assert status() == 404
    page.goto(address)
    page.get_by_role("button", name="Restore").click()
    expect(page.get_by_role("status")).to_contain_text(f"Animal {number} was restored.")
    assert status() == 200
    page.get_by_role("button", name="Remove this animal").click()
    expect(page.get_by_role("status")).to_contain_text(f"Animal {number} was removed.")
    open_section(page, "Audit")
    page.get_by_role("button", name=f"Restore animal {number}").click()
    expect(page.get_by_role("status")).to_contain_text(f"Animal {number} was restored.")
    assert status() == 200


def test_a_key_is_created_limited_rotated_and_revoked(page: Page, server: Server) -> None:
    open_section(page, "Keys")
    page.get_by_role("link", name="Create a key").click()
    page.get_by_label("Name").fill("Shelter app")
    expect(page.get_by_label("Requests per minute")).to_be_hidden()
    page.get_by_label("enterprise").check()
    page.get_by_label("Requests per minute").fill("1")
    page.get_by_label("Requests per day").fill("100")
    page.get_by_role("button", name="Create the key").click()
    secret = page.locator("#secret").inner_text()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    headers = {"Authorization": f"Bearer {secret}"}
    assert [response.status for response in asking(server.port, 2, headers)] == [200, 429]
    page.reload()
    expect(page.locator("#secret")).to_have_count(0)
    expect(page.get_by_role("meter", name="Today's quota")).to_contain_text("1 of 100")

    page.get_by_text("Change", exact=True).click()
    page.get_by_label("Requests per minute").fill("50")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("enterprise: 50 per minute, 100 per day")).to_be_visible()
    assert asking(server.port, 1, headers)[0].status == 200

    page.get_by_text("Rotate", exact=True).click()
    page.get_by_label("Keep the old secret working for").fill("0s")
    page.get_by_role("button", name="Create a new secret").click()
    rotated = {"Authorization": f"Bearer {page.locator('#secret').inner_text()}"}
    assert (asking(server.port, 1, headers)[0].status, asking(server.port, 1, rotated)[0].status) == (401, 200)

    dialog = page.get_by_role("dialog")
    page.get_by_role("link", name="Revoke this key").click()
    expect(dialog).to_contain_text("Revoke Shelter app?")
    dialog.get_by_role("link", name="Cancel").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("link", name="Revoke this key").click()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert asking(server.port, 1, rotated)[0].status == 200
    page.get_by_role("link", name="Revoke this key").click()
    dialog.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("status")).to_contain_text("The key is revoked")
    assert asking(server.port, 1, rotated)[0].status == 401
    actions = [entry.action for entry in Commands(server).entries()[:4]]
    assert actions == ["revoke key", "rotate key", "update key", "create key"]


def test_a_new_ban_appears_without_a_reload_and_is_lifted(page: Page, server: Server) -> None:
    open_section(page, "Bans")
    key = server.key(limits=Limits(1, 100))
    assert asking(server.port, 3, key.headers)[-1].code == "key_banned"
    row = page.locator("tr", has_text=key.id)
    expect(row).to_be_visible(timeout=15_000)
    row.get_by_role("button", name="Lift the ban").click()
    expect(page.get_by_role("status")).to_contain_text(f"{key.id} was lifted")
    assert asking(server.port, 1, key.headers)[0].code == "rate_limit_exceeded"
    open_section(page, "Audit")
    page.get_by_label("Subject or detail").fill(key.id)
    expect(page.locator("#rows tr", has_text="lift ban")).to_have_count(1)
