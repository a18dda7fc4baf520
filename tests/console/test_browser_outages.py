"""Outages of Redis and the store, and outdated numbers, in a real Chromium, in wide, narrow, light and dark windows."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from harness.backends import Postgres, Redis
from harness.browsers import look
from harness.consoles import Console, running_console
from harness.servers import Server
from tests.console.browser_steps import open_section, press, signed_in
from tests.console.outages import away

pytestmark = pytest.mark.thorough

REFRESHED_WITHIN = 30_000  # milliseconds. Pages refresh every 5 seconds, and may have to wait for a timeout
REDIS_AWAY = re.compile(
    r"Redis has not responded since at least 20\S+ \S+Z\. Until it responds, each node applies the limits"
)
STORE_AWAY = re.compile(r"The store or the gate has not responded since at least 20\S+ \S+Z\. Run petstore check")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Uses PostgreSQL and Redis, which can be suspended. No service is running."""
    server = Server(tmp_path_factory.mktemp("outages") / "data", "cluster")
    server.create()
    server.fill(20)
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
def page(context: BrowserContext) -> Iterator[Page]:
    """A page. The test fails if the page has script errors."""
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    opened.close()
    assert errors == []


def banner(page: Page) -> Locator:
    return page.locator("#troubles .message")


def stop_reloading(page: Page) -> None:
    """Stops a page from reloading itself, as the Escape key does. Otherwise, it would reload while axe-core runs."""
    page.evaluate("window.stop()")


@pytest.mark.parametrize("section", ["overview", "animals", "keys", "bans", "health"])
def test_a_page_without_redis(page: Page, console: Console, redis: Redis, section: str) -> None:
    with away(redis):
        page.goto(console.origin + "/live/keys")  # this page calls Redis, but others may show cached values
        page.goto(f"{console.origin}/live/{section}")
        expect(banner(page)).to_have_text(REDIS_AWAY)
        expect(banner(page)).to_be_in_viewport()
        look(page, f"redis-away-{section}")
        press(page, page.get_by_role("link", name="Skip to main content"))
        expect(page.locator("#main:focus #troubles")).to_contain_text("Redis")


def test_an_open_page_shows_that_redis_is_away_and_back(page: Page, console: Console, redis: Redis) -> None:
    """During the outage, bans that were known before are no longer shown."""
    no_bans, not_known = page.get_by_text("No keys are banned in live"), page.get_by_text("cannot show bans.")
    page.goto(console.origin + "/live/bans")
    expect(no_bans).to_be_visible(timeout=REFRESHED_WITHIN)
    expect(banner(page)).to_have_count(0, timeout=REFRESHED_WITHIN)  # a previous test may have suspended Redis
    with away(redis):
        expect(banner(page)).to_have_text(REDIS_AWAY, timeout=REFRESHED_WITHIN)
        expect(not_known).to_be_visible()
        open_section(page, "Overview")
        expect(page.locator("#tiles").get_by_role("link", name="Keys banned now")).to_contain_text("unknown")
        open_section(page, "Bans")
    expect(banner(page)).to_have_count(0, timeout=REFRESHED_WITHIN)
    expect(no_bans).to_be_visible()


def test_a_page_without_the_store(page: Page, console: Console, postgres: Postgres) -> None:
    with away(postgres):
        page.goto(console.origin + "/live/keys")
        expect(page.get_by_role("heading", level=1)).to_have_text("503")
        expect(page.get_by_role("alert")).to_have_text(STORE_AWAY)
        expect(page.get_by_role("alert")).to_be_in_viewport()
        expect(page.get_by_role("navigation", name="Sections")).to_be_visible()
        stop_reloading(page)
        look(page, "store-away")
    press(page, page.get_by_role("link", name="Go to the overview"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_a_page_of_a_named_operator_without_the_store(browser: Browser, console: Console, postgres: Postgres) -> None:
    """The console cannot check whether the operator was revoked, so the page has no sections."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(console.origin + "/live/keys")
    page.get_by_label("Your token").fill(console.add_operator("Ada"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("Signed in as Ada")).to_be_visible()
    with away(postgres):
        page.get_by_role("navigation", name="Sections").get_by_role("link", name="Audit").click()
        expect(page.get_by_role("alert")).to_have_text(STORE_AWAY)
        expect(page.get_by_role("navigation")).to_have_count(0)
        stop_reloading(page)
        look(page, "store-away-operator")
    press(page, page.get_by_role("link", name="Go to the overview"))
    expect(page.get_by_text("Signed in as Ada")).to_be_visible()
    context.close()


def test_a_page_loads_again_by_itself_until_the_store_is_back(page: Page, console: Console, postgres: Postgres) -> None:
    with away(postgres):
        page.goto(console.origin + "/live/keys")
        expect(page.get_by_role("alert")).to_have_text(STORE_AWAY)
    expect(page.get_by_role("heading", level=1)).to_have_text("Keys", timeout=REFRESHED_WITHIN)


def test_a_form_sent_without_the_store(page: Page, console: Console, postgres: Postgres) -> None:
    page.goto(console.origin + "/live/keys/new")
    page.get_by_label("Name").fill("Shelter app")
    with away(postgres):
        press(page, page.get_by_role("button", name="Create the key"))
        expect(page.get_by_role("alert")).to_contain_text("Check whether the change was made")
        look(page, "store-away-form")


def test_an_open_page_shows_that_the_store_is_away_and_back(page: Page, console: Console, postgres: Postgres) -> None:
    page.goto(console.origin + "/live/overview")
    with away(postgres):
        message = page.locator("#messages .message")
        expect(message).to_have_text(STORE_AWAY, timeout=REFRESHED_WITHIN)
        expect(message).to_be_in_viewport()
        look(page, "store-away-open")
    expect(message).to_have_count(0, timeout=REFRESHED_WITHIN)


@pytest.fixture(scope="module")
def older(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a console whose numbers are 1 hour and 1 minute old."""
    server = Server(tmp_path_factory.mktemp("older") / "data")
    server.fill(1_234)
    server.program = ["tests.console.older_counts", "3660"]
    with running_console(server) as own:
        context = browser.new_context(base_url=own.origin)
        page = context.new_page()
        page.goto(own.link)
        yield page
        context.close()


def test_the_overview_says_how_old_the_number_of_animals_is(older: Page) -> None:
    older.goto("/live/overview")
    animals = older.get_by_role("region", name="Animals")
    expect(animals).to_contain_text("Counted 1 h 1 min ago.")
    expect(animals.get_by_role("row", name="All")).to_contain_text("1,234")
    look(older, "counted-ago-overview")
    press(older, animals.get_by_role("link", name="pending"))
    expect(older).to_have_url(re.compile("/live/animals.status=pending"))


def test_the_list_of_animals_says_how_old_their_number_is(older: Page) -> None:
    older.goto("/live/animals")
    expect(older.get_by_role("search")).to_contain_text("1,234 animals in live, counted 1 h 1 min ago")
    look(older, "counted-ago-animals")
    older.keyboard.press("/")
    expect(older.get_by_label("Name or id")).to_be_focused()
