"""The pictures in docs/images/. Screenshots show the current console, and the numbers in them are consistent."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from harness.consoles import Console
from tools.screenshots import COMMAND, IMAGES, PAGES, SCHEMES, demo_console, show, signed_in

ROOT = IMAGES.parents[1]
SIZE_MAX = 150_000  # bytes


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with demo_console(tmp_path_factory.mktemp("screenshots")) as running:
        yield running


@pytest.fixture(scope="module")
def page(browser: Browser, console: Console) -> Iterator[Page]:
    with signed_in(browser, console) as opened:
        yield opened


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAGES)
def test_screenshot_has_the_text_of_the_current_page(page: Page, console: Console, name: str) -> None:
    pictures = " and ".join(f"docs/images/{name}-{scheme}.png" for scheme in SCHEMES)
    current = show(page, console, name)
    assert current == (IMAGES / f"{name}.txt").read_text(), f"{pictures} are out of date. Run `{COMMAND}`."


@pytest.mark.thorough
def test_numbers_on_the_overview_agree(page: Page, console: Console) -> None:
    show(page, console, "overview")
    tiles = dict(zip(("requests", "429s", "server errors"), _numbers(page, "#tiles b"), strict=False))
    classes = {
        str(cell.get_attribute("data-class")): _number(cell.inner_text())
        for cell in page.locator(".legend[data-plot=requests] [data-class]").all()
    }
    assert tiles["requests"] == sum(classes.values())
    assert tiles["429s"] == classes["refused"] + classes["banned"] == sum(_numbers(page, "tr:has([id^=busy]) td + td"))
    assert tiles["server errors"] == classes["server_error"]
    assert _numbers(page, ".legend[data-plot=refusals] b") == [classes["refused"], classes["banned"]]
    *by_status, total = _numbers(page, "[aria-labelledby=animals-title] td")
    assert sum(by_status) == total


def _numbers(page: Page, selector: str) -> list[int]:
    return [_number(text) for text in page.locator(selector).all_inner_texts()]


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def test_every_picture_is_small_and_in_a_document() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    shown = {
        (document.parent / target).resolve()
        for document in documents
        for target in re.findall(r'(?:\]\(|src(?:set)?=")([^)"]+\.(?:png|svg))', document.read_text())
    }
    pictures = _pictures()
    assert {f"{name}-{scheme}.png" for name in PAGES for scheme in SCHEMES} <= {picture.name for picture in pictures}
    assert [picture.name for picture in pictures if picture not in shown] == []
    assert [picture.name for picture in pictures if picture.stat().st_size > SIZE_MAX] == []


def _pictures() -> list[Path]:
    return [file for file in sorted(IMAGES.iterdir()) if file.suffix in (".png", ".svg")]
