"""Runs Chromium for tests. Checks pages with axe-core, and looks for text that is cut off or covered.

Saves screenshots of faulty pages in tests/artifacts/, or of every page with PETSTORE_TEST_PICTURES=1.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import axe_playwright_python
from playwright.sync_api import Browser, Page, sync_playwright

from harness.backends import Missing

# The headless version comes first because it uses half the CPU time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
ARTIFACTS = Path(__file__).parents[1] / "tests" / "artifacts"
Look = tuple[int, int, Literal["light", "dark"]]
LOOKS: tuple[Look, ...] = ((1280, 800, "light"), (1280, 800, "dark"), (390, 844, "dark"), (390, 844, "light"))

# Finds pages wider than the window, text that is outside the window or cut off, and text or controls that overlap.
FAULTS = """() => {
  const faults = [];
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) faults.push(`the page is ${scrollWidth} pixels wide, the window ${clientWidth}`);
  const apart = ".visually-hidden, .skip-link, .scroll, .uplot, .cards thead";
  const shown = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest(apart);
  const text = (e) => (e.textContent || e.value || "").trim().slice(0, 30);
  const name = (e) => `${e.tagName.toLowerCase()}.${e.getAttribute("class")} "${text(e)}"`;
  const all = [...document.body.querySelectorAll("*")].filter(shown);
  for (const e of all) {
    const box = e.getBoundingClientRect();
    if (box.width && (box.right > innerWidth + 1 || box.left < -1)) faults.push("outside: " + name(e));
    const clips = getComputedStyle(e).overflowX !== "visible" && !e.matches("input, .canvas, svg");
    if (clips && !e.matches(".unseen") && e.scrollWidth > e.clientWidth + 1) faults.push("cut: " + name(e));
  }
  const kinds = "a, button, input:not([type=hidden]), select, summary, h1, h2, code, time, bdi, b, .badge, dt, dd";
  const leaves = all.filter((e) => e.matches(kinds));
  const boxes = leaves.flatMap((e) => [...e.getClientRects()].map((box) => [e, box])); // text may span several lines
  for (const [i, [e, a]] of boxes.entries())
    for (const [f, b] of boxes.slice(i + 1)) {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 2 && !e.contains(f) && !f.contains(e)) faults.push(`covered: ${name(e)} and ${name(f)}`);
    }
  return faults;
}"""
ROWS_SEEN = 12  # enough rows to include every kind of row in a table
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


@contextmanager
def browser_running() -> Iterator[Browser]:
    """Opens a browser. As long as it is open, an event loop runs in this thread."""
    if CHROMIUM is None:
        raise Missing("Chromium is not installed: the browser tests did not run")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


def look(page: Page, name: str) -> None:
    """Asserts that the page has no faults in wide and narrow windows, in light and dark mode."""
    for width, height, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        found = violations(page, colours_only=scheme == "dark") + page.evaluate(FAULTS)
        if found or os.environ.get("PETSTORE_TEST_PICTURES"):
            page.screenshot(path=ARTIFACTS / f"{name}-{width}-{scheme}.png", full_page=True)
        assert not found, f"{name} at {width}, {scheme}: {found}"
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")


def violations(page: Page, *, colours_only: bool = False) -> list[Any]:
    """Returns axe-core violations. Checks only the first rows of long tables, because the others are similar.

    With `colours_only`, runs only the contrast rule, because dark mode changes nothing else.
    """
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE)
    context = {"exclude": [f"tbody tr:nth-child(n + {ROWS_SEEN + 1})"]}
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if colours_only:
        options["runOnly"] = ["color-contrast"]
    run = "([context, options]) => axe.run(context, options).then((found) => found.violations)"
    found = page.evaluate(run, [context, options])
    return [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found]
