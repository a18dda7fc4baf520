"""The picture in the README: the overview of the data of `petstore serve --demo`.

PETSTORE_WRITE_PICTURE=1 makes it anew in docs/images/.
"""

import os
import struct
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, expect

from harness.browsers import ARTIFACTS
from harness.consoles import running_console
from harness.served import Served

PICTURE = Path(__file__).parents[2] / "docs/images/console.png"
WIDTH, HEIGHT = 1280, 800


def test_the_picture_in_the_readme_is_the_overview_of_the_demo(browser: Browser, serve: Callable[..., Served]) -> None:
    target = PICTURE if os.environ.get("PETSTORE_WRITE_PICTURE") else ARTIFACTS / "readme.png"
    target.parent.mkdir(exist_ok=True)
    with running_console(serve("--demo")) as console:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(console.link)
        expect(page.locator(".uplot").first).to_be_visible()
        expect(page.get_by_text("City shelters").first).to_be_visible()
        page.screenshot(path=target, animations="disabled")
        page.close()
    for picture in (target, PICTURE):
        assert struct.unpack(">II", picture.read_bytes()[16:24]) == (WIDTH, HEIGHT)
