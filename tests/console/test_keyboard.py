"""Every action of an operator, performed with the keyboard alone in a real Chromium."""

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from harness.commands import Commands
from harness.consoles import Console, running_console
from harness.servers import Server
from petstore.plans import Limits
from petstore.rate_limits import Windows
from tests.console.browser_steps import press

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Uses one pair of backends and no running service, because neither makes a difference in a browser."""
    return Server(tmp_path_factory.mktemp("keyboard") / "data")


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


def fill(page: Page, label: str, text: str) -> None:
    press(page, page.get_by_label(label, exact=True), "ControlOrMeta+a")
    page.keyboard.type(text)


def test_a_key_is_changed_suspended_resumed_rotated_and_revoked(page: Page, server: Server, console: Console) -> None:
    key = server.key("free")
    page.goto(f"{console.origin}/live/keys/{key.id}")
    press(page, page.locator("#change summary"))
    fill(page, "Name", "Changed by keyboard")
    press(page, page.get_by_label("free"), "ArrowDown")
    press(page, page.get_by_role("button", name="Save"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Changed by keyboard")
    expect(page.get_by_text("pro: 300 per minute")).to_be_visible()
    press(page, page.get_by_role("button", name="Suspend"))
    expect(page.locator("#tiles")).to_contain_text("suspended")
    press(page, page.get_by_role("button", name="Resume"))
    expect(page.locator("#tiles")).to_contain_text("active")
    press(page, page.locator("#rotate summary"))
    press(page, page.get_by_role("button", name="Create a new secret"))
    secret = page.locator("#secret").inner_text()
    press(page, page.get_by_role("button", name="Copy", exact=True))
    assert page.evaluate("navigator.clipboard.readText()") == secret
    press(page, page.get_by_role("link", name="Revoke this key"))
    press(page, page.get_by_role("dialog").get_by_role("button", name="Revoke"))
    expect(page.locator("#tiles")).to_contain_text("revoked")
    actions = [entry.action for entry in Commands(server).entries() if entry.subject == key.id]
    assert actions == ["revoke key", "rotate key", "resume key", "suspend key", "update key", "create key"]


def test_a_secret_is_identified(page: Page, server: Server, console: Console) -> None:
    key = server.key("free")
    page.goto(f"{console.origin}/live/keys")
    press(page, page.get_by_role("link", name="Whose secret is this?"))
    expect(page.get_by_label("Secret")).to_be_focused()
    page.keyboard.type(key.secret)
    page.keyboard.press("Enter")
    expect(page.get_by_text("The secret belongs to")).to_be_visible()
    assert key.secret not in page.url


def test_keys_are_filtered_and_an_id_is_copied(page: Page, server: Server, console: Console) -> None:
    key = server.key("business", environment="staging")
    server.key("free", environment="staging")
    page.goto(f"{console.origin}/staging/keys")
    press(page, page.get_by_label("Plan"), "b")
    expect(page.locator("#rows tr")).to_have_count(1)
    press(page, page.get_by_role("button", name=key.id))
    assert page.evaluate("navigator.clipboard.readText()") == key.id


def test_a_ban_is_lifted(page: Page, server: Server, console: Console) -> None:
    key, now = server.key("enterprise", Limits(5, 10)), int(time.time() * 1000)
    banned = Windows(ban_start=now, ban_end=now + 3_600_000, bans=1)
    server.act(lambda backends: backends.gate.put_windows([(key.id, banned)]))
    page.goto(f"{console.origin}/live/keys/{key.id}")
    press(page, page.get_by_role("button", name="Lift the ban"))
    expect(page.get_by_role("status")).to_contain_text(f"The ban on {key.id} was lifted")


def test_animals_are_found_changed_removed_and_restored(page: Page, server: Server, console: Console) -> None:
    server.fill(5, "staging")
    page.goto(f"{console.origin}/staging/animals")
    page.keyboard.press("/")
    expect(page.get_by_label("Name or id")).to_be_focused()
    page.keyboard.type("pet 3")
    expect(page.locator("#rows tr")).to_have_count(1)
    press(page, page.locator("#rows input[type=checkbox]"), "Space")
    press(page, page.get_by_role("button", name="pending"))
    expect(page.locator("#rows .badge")).to_have_text("pending")
    press(page, page.locator("#rows input[type=checkbox]"), "Space")
    press(page, page.get_by_role("button", name="Remove"))
    expect(page.get_by_role("status")).to_contain_text("was removed")
    expect(page.locator("#rows tr[id]")).to_have_count(0)
    press(page, page.get_by_role("button", name="Restore"))
    expect(page.get_by_role("status")).to_contain_text("was restored")
    page.goto(f"{console.origin}/staging/animals/3")
    fill(page, "Name", "Pet three")
    press(page, page.get_by_role("button", name="Save"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Pet three")
    expect(page.locator("#rows tr")).to_have_count(4)
    press(page, page.get_by_role("button", name="Remove this animal"))
    expect(page.get_by_role("button", name="Restore")).to_be_visible()
    press(page, page.get_by_role("navigation", name="Sections").get_by_role("link", name="Audit"))
    press(page, page.get_by_role("button", name="Restore animal").first)
    expect(page.get_by_role("heading", level=1)).to_have_text("Pet three")


def test_an_operator_is_added_made_viewer_and_revoked(page: Page, server: Server, console: Console) -> None:
    page.goto(f"{console.origin}/live/operators")
    press(page, page.locator("#add summary"))
    fill(page, "Name", "Grace")
    page.keyboard.press("Enter")
    expect(page.locator("#token-1")).to_be_visible()
    press(page, page.get_by_role("button", name="Make Grace a viewer"))
    expect(page.get_by_role("status")).to_contain_text("Grace is now a viewer")
    page.once("dialog", lambda dialog: dialog.accept())
    press(page, page.get_by_role("button", name="Revoke Grace"))
    expect(page.get_by_role("status")).to_contain_text("Grace was signed out")


def test_calls_of_a_deprecated_operation_are_exported(page: Page, console: Console) -> None:
    page.goto(f"{console.origin}/live/overview")
    press(page, page.get_by_role("navigation", name="Sections").get_by_role("link", name="Deprecated"))
    with page.expect_download() as download:
        press(page, page.get_by_role("link", name="Export as CSV"))
    assert re.fullmatch(r"deprecated-live\.csv", download.value.suggested_filename)
