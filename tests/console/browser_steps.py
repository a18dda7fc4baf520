"""Steps that several browser test files share."""

import contextlib
import re
from collections.abc import Iterator

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from harness.consoles import Console

TABS_MAX = 150


def open_section(page: Page, title: str) -> None:
    page.get_by_role("navigation", name="Sections").get_by_role("link", name=title).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(title)


def add_pet(page: Page, name: str) -> int:
    if page.locator("#add").get_attribute("open") is None:
        page.get_by_text("Add an animal").click()
    page.locator("#add").get_by_label("Name").fill(name)
    page.locator("#add").get_by_label("Category id").fill("3")
    page.get_by_role("button", name="Add to live").click()
    message = page.get_by_role("status").get_by_text(re.compile(r"Animal \d+ was added"))
    found = re.search(r"\d+", message.inner_text())
    assert found is not None
    return int(found[0])


def press(page: Page, target: Locator, key: str = "Enter") -> None:
    """Moves the focus to an element with the Tab key, then presses `key`."""
    expect(target).to_be_visible()
    element = target.element_handle()
    for _ in range(TABS_MAX):
        focused, replaced = element.evaluate("element => [element === document.activeElement, !element.isConnected]")
        if focused:
            page.keyboard.press(key)
            return
        if replaced:  # finding it is slow, so do it again only after a refresh of the page
            element = target.element_handle()
            continue
        page.keyboard.press("Tab")
    raise AssertionError(f"{target} cannot be reached with the Tab key")


@contextlib.contextmanager
def signed_in(browser: Browser, console: Console) -> Iterator[BrowserContext]:
    """Opens a browser context in which an operator has signed in with the link."""
    opened = browser.new_context()
    page = opened.new_page()
    page.goto(console.link)
    expect(page).to_have_url(console.origin + "/live/overview")
    page.close()
    yield opened
    opened.close()
