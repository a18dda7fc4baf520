"""Fixtures: a service and a console with the same data on each pair of backends, and a signed-in operator."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from harness.consoles import Console, ConsoleClient, running_console
from harness.servers import HOSTS, Server, serving

_names = itertools.count(1)


@pytest.fixture(scope="package", params=HOSTS, ids=list(HOSTS.values()))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("console") / "data", request.param) as running:
        yield running


@pytest.fixture(scope="package")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


@pytest.fixture
def own_console(tmp_path: Path) -> Iterator[Console]:
    """A console for one test, which may move the console's clock."""
    with running_console(Server(tmp_path / "data")) as running:
        yield running


@pytest.fixture
def new_name() -> Callable[[], str]:
    return lambda: f"operator {next(_names)}"


@pytest.fixture
def operator(console: Console, new_name: Callable[[], str]) -> ConsoleClient:
    """A client that is signed in as a new operator."""
    return console.sign_in(new_name())


@pytest.fixture
def page(browser: Browser, console: Console, new_name: Callable[[], str]) -> Iterator[Page]:
    """A browser page of a new operator. The test fails on script errors and on requests to other sites."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: None if request.url.startswith(console.origin) else errors.append(request.url))
    # pytest shows these lines when a test fails.
    opened.on("request", lambda request: print("request", request.method, request.url, request.post_data or ""))
    opened.on("response", lambda response: print("response", response.status, response.url))
    opened.on("requestfailed", lambda request: print("failed", request.url, request.failure))
    name = new_name()
    opened.goto(console.origin)
    opened.get_by_label("Your token").fill(console.add_operator(name))
    opened.get_by_role("button", name="Sign in").click()
    expect(opened.get_by_text(f"Signed in as {name}")).to_be_visible()
    yield opened
    context.close()
    assert errors == []
