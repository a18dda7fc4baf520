"""Every page in a real Chromium, in wide and narrow windows, in light and dark mode.

axe-core finds no faults, there are no horizontal scroll bars, and no text is cut off or covered.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from harness.browsers import look, violations
from harness.consoles import Console, running_console
from harness.disks import filled, small_disk
from harness.servers import Server
from tests.console.browser_steps import signed_in
from tests.console.every_page import GET_ROUTES, KEYS, EveryPage, fill

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    server = Server(tmp_path_factory.mktemp("appearance") / "data")
    fill(server)
    return server


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


@pytest.fixture(scope="module")
def context(browser: Browser, console: Console) -> Iterator[BrowserContext]:
    with signed_in(browser, console) as opened:
        yield opened


@pytest.fixture
def page(context: BrowserContext, console: Console) -> Iterator[Page]:
    """A page. The test fails on errors in the page and on requests to other sites."""
    opened = context.new_page()
    errors: list[str] = []
    opened.on("console", lambda message: None if "422" in message.text else errors.append(message.text))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: None if request.url.startswith(console.origin) else errors.append(request.url))
    yield opened
    opened.close()
    assert errors == []


def key_id(page: Page, console: Console, name: str) -> str:
    page.goto(console.origin + "/live/keys")
    row = page.locator("#rows tr", has=page.get_by_role("link", name=name, exact=True))
    return row.locator("code").inner_text()


@pytest.fixture(scope="module")
def every_page(console: Console) -> EveryPage:
    return EveryPage(console)


@pytest.mark.parametrize("route", GET_ROUTES)
def test_every_page(context: BrowserContext, console: Console, every_page: EveryPage, route: str) -> None:
    for address in filter(every_page.is_page, every_page.addresses(route)):
        page = context.new_page()  # not the fixture, because a browser reports the 404 for a removed animal as an error
        page.goto(console.origin + address)
        expect(page.get_by_role("heading", level=1)).not_to_be_empty()
        environment = address.split("/")[1]
        assert page.title().startswith(environment.upper())
        current = page.get_by_role("link", name=environment.upper(), exact=True)
        expect(current).to_have_attribute("aria-current", "true")
        page.evaluate("document.querySelectorAll('details.panel').forEach((panel) => (panel.open = true))")
        look(page, re.sub(r"\W+", "-", address).strip("-"))
        page.close()


def test_the_overview_has_two_plots(page: Page, console: Console) -> None:
    page.goto(f"{console.origin}/live/overview")
    expect(page.locator(".uplot")).to_have_count(2)
    page.get_by_text("Usage as a table").click()
    expect(page.locator("#usage-table tbody tr").first).to_be_visible()


def test_the_form_for_a_new_key_with_an_error_and_its_secret(page: Page, console: Console) -> None:
    page.goto(console.origin + "/live/keys/new")
    page.get_by_label("Name").fill("Shelter app")
    page.get_by_label("enterprise").check()
    page.get_by_label("Requests per minute").fill("many")
    page.get_by_label("Expires after").fill("90d")
    with page.expect_response(lambda response: response.request.method == "POST") as response:
        page.get_by_role("button", name="Create the key").click()
    assert response.value.status == 422
    expect(page.get_by_role("alert")).to_contain_text("whole numbers")
    expect(page.get_by_label("Name")).to_have_value("Shelter app")
    expect(page.get_by_label("Requests per minute")).to_have_value("many")
    expect(page.get_by_label("Expires after")).to_have_value("90d")
    look(page, "key-new-error")
    page.get_by_label("Requests per minute").fill("5")
    page.get_by_label("Requests per day").fill("50")
    page.get_by_role("button", name="Create the key").click()
    expect(page.get_by_role("button", name="Copy", exact=True)).to_be_focused()
    look(page, "key-secret")


def test_the_confirmation_of_a_revocation(page: Page, console: Console) -> None:
    page.goto(f"{console.origin}/live/keys/{key_id(page, console, 'no name')}")
    page.get_by_role("link", name="Revoke this key").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []  # not `look`, because the dialog covers other text on purpose


@pytest.mark.parametrize("kind", ["key", "animal"])
def test_a_form_after_a_conflict(page: Page, context: BrowserContext, console: Console, kind: str) -> None:
    address = f"/live/keys/{key_id(page, console, KEYS[4])}" if kind == "key" else "/live/animals/1"
    stale = context.new_page()  # a separate page, because a browser reports its 409 as an error
    for each, name in ((stale, "y" * 255), (page, "🐈 " * 127)):
        each.goto(f"{console.origin}{address}")
        if kind == "key":
            each.locator("#change summary").click()
        each.get_by_label("Name").fill(name)
    for each in (page, stale):
        each.get_by_role("button", name="Save").click()
    expect(stale.get_by_text("Saved value:")).to_be_visible()
    look(stale, f"conflict-{kind}")
    stale.close()


def test_the_message_after_a_removal(page: Page, console: Console) -> None:
    page.goto(console.origin + "/live/animals")
    page.get_by_role("link", name="right to left").first.click()
    page.get_by_role("button", name="Remove this animal").click()
    look(page, "animals-removed")
    page.get_by_role("button", name="Restore").click()
    expect(page.get_by_role("status")).to_contain_text("was restored")


def test_the_page_that_identifies_a_secret(page: Page, console: Console) -> None:
    page.goto(console.origin + "/live/keys")
    page.get_by_role("link", name="Whose secret is this?").click()
    page.get_by_label("Secret").fill("pets_live_wrong")
    page.get_by_role("button", name="Identify").click()
    expect(page.get_by_role("alert")).to_contain_text("checksum")
    look(page, "identify-error")


def test_the_token_of_a_new_operator(page: Page, console: Console) -> None:
    page.goto(console.origin + "/live/operators")
    page.get_by_text("Add an operator").click()
    page.get_by_label("Name").fill("Grace Hopper")
    page.get_by_label("Role").select_option("viewer")
    page.get_by_role("button", name="Add and show the token").click()
    expect(page.locator("#token-1")).to_be_visible()
    expect(page.get_by_role("button", name="Copy", exact=True)).to_be_focused()
    look(page, "operators-token")


def test_the_pages_of_a_viewer(browser: Browser, console: Console) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(console.origin + "/live/animals")
    page.get_by_label("Your token").fill(console.add_operator("Vera", "viewer"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("(viewer)")).to_be_visible()
    look(page, "viewer-animals")
    page.goto(console.origin + "/live/keys")
    page.locator("#rows a").first.click()
    look(page, "viewer-key")
    page.goto(console.origin + "/live/keys/new")
    expect(page.get_by_role("heading", level=1)).to_have_text("403")
    look(page, "viewer-refused")
    context.close()


def test_the_sign_in_page(browser: Browser, console: Console) -> None:
    page = browser.new_page()
    page.goto(console.origin + "/live/keys")
    page.get_by_label("Your token").fill("pets_op_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    look(page, "sign-in")
    page.get_by_label("Your token").fill(console.add_operator("Sigrid"))
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(console.origin + "/live/keys")
    page.close()


def test_the_page_of_a_404(context: BrowserContext, console: Console) -> None:
    page = context.new_page()
    page.goto(console.origin + "/live/keys/key_nobody")
    expect(page.get_by_role("heading", level=1)).to_have_text("404")
    expect(page.get_by_role("navigation", name="Sections")).to_be_visible()
    look(page, "not-found")
    page.close()


def test_pages_on_a_full_disk(browser: Browser, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 60) as disk:
        server = Server(disk / "data")
        server.create()
        with running_console(server) as console, signed_in(browser, console) as context:
            filled(disk / "ballast")
            page = context.new_page()
            for section in ("overview", "health"):
                page.goto(f"{console.origin}/live/{section}")
                expect(page.locator("#troubles")).to_contain_text("has been full or nearly full since")
                look(page, f"{section}-full-disk")
