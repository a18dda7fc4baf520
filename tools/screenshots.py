"""`python -m tools.screenshots`: takes the screenshots in docs/images/, with demo data and at a fixed time.

It captures each page in light and dark mode, and saves the page's text next to the pictures.
tests/project/test_screenshots.py compares this text with the current page. The command needs Chromium.
"""

import argparse
import contextlib
import datetime
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, expect

from harness.browsers import browser_running
from harness.consoles import Console, running_console
from harness.served import wait_for
from harness.servers import Server, started
from petstore.cli import demo
from petstore.data_dir import METRICS
from petstore.observability.multiprocess import last_heartbeat

IMAGES = Path(__file__).parent.parent / "docs/images"
COMMAND = ".venv/bin/python -m tools.screenshots"
AT = datetime.datetime(2026, 11, 16, 22, 0, tzinfo=datetime.UTC)
WIDTH, HEIGHT_MAX = 1280, 1200
MARGIN = 12  # pixels below the last part of the page
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
REFRESHED_WITHIN = 20_000  # milliseconds
RANDOM_ID = re.compile(r"\b(key_|imp_)\w+|\b[0-9a-f]{32}\b")


def open_overview(page: Page) -> None:
    page.get_by_role("link", name="Overview").click()
    # The console counts in the background, so wait for the refresh that shows the current numbers.
    expect(page.locator("main")).not_to_contain_text(re.compile("Loading …|Counted"), timeout=REFRESHED_WITHIN)
    expect(page.locator("#to-bans b")).not_to_have_text("…", timeout=REFRESHED_WITHIN)


def open_key(page: Page) -> None:
    page.get_by_role("link", name="Keys", exact=True).click()
    page.get_by_role("link", name="Harbour Vets").click()
    expect(page.get_by_role("heading", name="Harbour Vets")).to_be_visible()


def open_import(page: Page) -> None:
    page.goto(f"{page.url.partition('/live/')[0]}/live/animals/imports")
    page.get_by_role("link", name="breeders.jsonl").click()
    expect(page.get_by_role("heading", name="Import of breeders.jsonl")).to_be_visible()


PAGES: dict[str, Callable[[Page], None]] = {"overview": open_overview, "key": open_key, "import": open_import}


@contextlib.contextmanager
def demo_console(directory: Path) -> Iterator[Console]:
    """Starts a service and a console with demo data that was created at `AT`.

    Waits for the service's first heartbeat, because until then the console reports that the service has not run.
    """
    server = Server(directory / "data")
    server.create()
    server.act(lambda backends: demo.fill(backends.stores, backends.gate, AT.timestamp()))
    set_clock(server)
    with started(server), running_console(server) as console:
        assert wait_for(lambda: last_heartbeat(server.data / METRICS) is not None)
        yield console


def set_clock(server: Server) -> None:
    """Sets the clock of the service and the console to `AT`. The clock keeps running, so set it again for each page."""
    server.move_clock(AT.timestamp() - time.time())


@contextlib.contextmanager
def signed_in(browser: Browser, console: Console) -> Iterator[Page]:
    """Opens a signed-in page in the browser, whose clock is fixed at `AT`."""
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT_MAX}, timezone_id="UTC", locale="en-US", reduced_motion="reduce"
    )
    page = context.new_page()
    page.clock.set_fixed_time(AT)
    page.goto(console.link)
    yield page
    context.close()


def show(page: Page, console: Console, name: str) -> str:
    """Opens a page of the console. Returns its text without random ids."""
    set_clock(console.server)
    PAGES[name](page)
    if page.locator(".canvas").count():
        expect(page.locator(".uplot")).to_have_count(page.locator(".canvas").count())
    text = page.locator("body").inner_text()
    return RANDOM_ID.sub(lambda found: f"{found[1] or ''}…", re.sub(r"\s*\n\s*", "\n", text)).strip() + "\n"


def main() -> int:
    with (
        tempfile.TemporaryDirectory() as directory,
        demo_console(Path(directory)) as console,
        browser_running() as browser,
        signed_in(browser, console) as page,
    ):
        for name in PAGES:
            (IMAGES / f"{name}.txt").write_text(show(page, console, name))
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                draw(page, IMAGES / f"{name}-{scheme}.png")
    return 0


def draw(page: Page, file: Path) -> None:
    """Saves a screenshot of the page, which ends below the last part that fits completely."""
    bottom = page.evaluate(
        """(max) => Math.max(...[...document.querySelectorAll("main > *, #refreshed > *")]
          .map((part) => part.getBoundingClientRect().bottom).filter((bottom) => bottom <= max))""",
        HEIGHT_MAX - MARGIN,
    )
    page.screenshot(path=file, clip={"x": 0, "y": 0, "width": WIDTH, "height": int(bottom) + MARGIN})
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # rejects any other arguments
    sys.exit(main())
