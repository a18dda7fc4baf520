"""A service and a console over the same data, on each pair of backends, for all tests of a file."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.consoles import Console, Visitor, running_console
from tests.servers import Server, serving

_names = itertools.count(1)


@pytest.fixture(scope="package", params=["own", "cluster"], ids=["sqlite-lmdb", "postgres-redis"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("console") / "data", request.param) as running:
        yield running


@pytest.fixture(scope="package")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


@pytest.fixture
def new_name() -> Callable[[], str]:
    return lambda: f"operator {next(_names)}"


@pytest.fixture
def ada(console: Console, new_name: Callable[[], str]) -> Visitor:
    """An operator of the test's own, signed in."""
    return console.signed_in(new_name())


@pytest.fixture
def page(browser: Browser, console: Console, new_name: Callable[[], str]) -> Iterator[Page]:
    """An operator, signed in with a token by hand, on a page that complains of nothing and asks nobody else."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda request: None if request.url.startswith(console.origin) else faults.append(request.url))
    # Shown when a test fails: what the page asked for, and what it was told.
    opened.on("request", lambda request: print("asked", request.method, request.url, request.post_data or ""))
    opened.on("response", lambda response: print("told", response.status, response.url))
    opened.on("requestfailed", lambda request: print("failed", request.url, request.failure))
    name = new_name()
    opened.goto(console.origin)
    opened.get_by_label("Your token").fill(console.operator(name))
    opened.get_by_role("button", name="Sign in").click()
    expect(opened.get_by_text(f"Signed in as {name}")).to_be_visible()
    yield opened
    context.close()
    assert faults == []
