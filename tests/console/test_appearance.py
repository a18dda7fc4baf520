"""Every page in a real Chromium, wide and light, narrow and dark: axe-core, no text cut or covered."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from harness.browsers import look, violations
from harness.consoles import Console, running_console
from harness.servers import Server
from harness.stores import imported
from petstore.audit import AuditEntry
from petstore.keys import digest_of, mint, new_key
from petstore.pets import STATUSES, NewPet
from petstore.plans import Limits, Plan
from petstore.rate_limits import Windows
from petstore.usage import OperationUsage, RecentError, TotalUsage
from tests.console.browser_steps import signed_in

pytestmark = pytest.mark.thorough

SECTIONS = ["overview", "animals", "keys", "bans", "bills", "deprecated", "audit", "operators", "health"]
NAMES = ["Rex", "<script>alert(1)</script>", "🐈" * 255, "\u202eright to left", "x" * 255, "Mia", "Luna", "Ærø"]
KEYS = ["Ada's laptop", "'; drop table keys; --", "🐕" * 255, "", "<script>alert(2)</script>", "Zoo Leipzig – booking"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Live has data, staging is empty. No service runs."""
    server = Server(tmp_path_factory.mktemp("appearance") / "data")
    now = time.time()
    plans: list[Plan] = ["free", "pro", "enterprise", "business", "free", "pro"]

    async def fill(backends: Any) -> None:
        live = backends.stores["live"]
        pets = (NewPet(NAMES[i % len(NAMES)], i, STATUSES[i % 3]) for i in range(20))
        await imported(live, *pets, entry=AuditEntry(now - 9000, "ada", "import", "animals.jsonl"))
        keys = []
        for i, name in enumerate(KEYS):
            limits = Limits(50, 5000) if plans[i] == "enterprise" else None
            key = new_key("live", plans[i], now=now - 100 * i, name=name, limits=limits)
            await live.keys.add(
                key, digest_of(mint("live")), AuditEntry(key.created, "ada", "create key", key.id, key.plan)
            )
            keys.append(key)
        await live.keys.revoke(keys[5].id, AuditEntry(now, "grace (command line)", "revoke key", keys[5].id))
        for hour in range(700, 0, -7):
            start = int(now) - hour * 3600
            rows = [OperationUsage(key.id, start, "admitted", 900 - 100 * i, "listPets") for i, key in enumerate(keys)]
            await live.usage.add(
                [
                    *rows,
                    OperationUsage(keys[2].id, start, "refused", 40, "getPet"),
                ],
                {},
                [TotalUsage(start, "unauthorized", 9)],
            )
        await live.usage.add_errors(
            [
                RecentError(
                    key.id, now - 70 * n, f"{n:032x}", "other", 404, "not_found", f"/v1/{'long-path/' * 20}"[:200]
                )
                for key in keys
                for n in range(6)
            ]
        )
        for minute in range(60):
            rows = [OperationUsage(key.id, int(now) - 60 * minute, "admitted", 60 - minute, "getPet") for key in keys]
            await live.usage.add(
                [*rows, OperationUsage(keys[2].id, int(now) - 60 * minute, "banned", 5, "listPets")], {keys[0].id: now}
            )
        at = int(now * 1000)
        await backends.gate.put_windows(
            [
                (keys[0].id, Windows(at, 31, at, 612)),
                (keys[1].id, Windows(at, 0, at, 10_000)),
                (keys[2].id, Windows(at, 49, at, 4300, ban_start=at - 9000, ban_end=at + 3_000_000, bans=5)),
            ]
        )

    server.act(fill)
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
    """A page without errors that loads nothing from other sites."""
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


@pytest.mark.parametrize(
    ("section", "environment"),
    [
        *((section, "live") for section in SECTIONS),
        *((section, "staging") for section in ("overview", "animals", "keys")),  # empty; the others look alike
    ],
)
def test_a_section(page: Page, console: Console, section: str, environment: str) -> None:
    page.goto(f"{console.origin}/{environment}/{section}")
    expect(page.get_by_role("heading", level=1)).to_have_text(
        "Deprecated calls" if section == "deprecated" else section.capitalize()
    )
    expect(page.get_by_role("link", name=environment.upper(), exact=True)).to_have_attribute("aria-current", "true")
    assert page.title().startswith(environment.upper())
    if section == "overview":
        expect(page.locator(".uplot")).to_have_count(2)
    look(page, f"{section}-{environment}")


@pytest.mark.parametrize("span", ["hour", "month"])
def test_the_overview_of_another_time_span(page: Page, console: Console, span: str) -> None:
    page.goto(f"{console.origin}/live/overview?span={span}")
    page.get_by_text("Usage as a table").click()
    assert page.locator("#usage-table tbody tr").count() in {"hour": [60], "month": range(117, 121)}[span]
    look(page, f"overview-{span}")


@pytest.mark.parametrize(("name", "kind"), [(KEYS[2], "banned"), (KEYS[0], "active"), (KEYS[5], "revoked")])
def test_the_page_of_a_key(page: Page, console: Console, name: str, kind: str) -> None:
    page.goto(f"{console.origin}/live/keys/{key_id(page, console, name)}?span=hour")
    look(page, f"key-{kind}")


def test_the_form_for_a_new_key_with_an_error(page: Page, console: Console) -> None:
    page.goto(console.origin + "/live/keys/new")
    look(page, "key-new")
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


def test_the_confirmation_of_a_revocation_as_dialog_and_as_page(page: Page, console: Console) -> None:
    address = f"{console.origin}/live/keys/{key_id(page, console, 'no name')}"
    page.goto(address)
    page.get_by_role("link", name="Revoke this key").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []  # not `look`: the dialog covers other text on purpose
    page.goto(address + "/revoke")
    look(page, "revoke-page")


@pytest.mark.parametrize(("name", "panel"), [(KEYS[2], "change"), (KEYS[0], "rotate")])
def test_an_open_panel_of_a_key(page: Page, console: Console, name: str, panel: str) -> None:
    page.goto(f"{console.origin}/live/keys/{key_id(page, console, name)}")
    page.locator(f"#{panel} summary").click()
    look(page, f"key-{panel}")


@pytest.mark.parametrize("kind", ["key", "animal"])
def test_the_question_after_a_conflict(page: Page, context: BrowserContext, console: Console, kind: str) -> None:
    address = f"/live/keys/{key_id(page, console, KEYS[4])}" if kind == "key" else "/live/animals/1"
    stale = context.new_page()  # a page of its own: a browser reports its 409 as an error
    for each, name in ((stale, "y" * 255), (page, "🐈 " * 127)):
        each.goto(f"{console.origin}{address}")
        if kind == "key":
            each.locator("#change summary").click()
        each.get_by_label("Name").fill(name)
    for each in (page, stale):
        each.get_by_role("button", name="Save").click()
    expect(stale.get_by_role("button", name="Keep theirs")).to_be_visible()
    look(stale, f"conflict-{kind}")
    stale.close()


def test_the_page_of_an_animal_and_of_a_removed_one(page: Page, console: Console) -> None:
    page.goto(console.origin + "/live/animals")
    page.get_by_role("link", name="right to left").first.click()
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    look(page, "animal")
    page.get_by_role("button", name="Remove this animal").click()
    expect(page.get_by_role("button", name="Restore")).to_be_visible()
    look(page, "animals-removed")
    page.goto(console.origin + "/live/audit")
    expect(page.get_by_role("button", name="Restore animal")).to_be_visible()
    look(page, "audit-removed")
    row = page.locator("tr", has=page.get_by_role("button", name="Restore animal"))
    removed = page.context.new_page()  # a page of its own: a browser reports its 404 as an error
    removed.goto(console.origin + str(row.get_by_role("link").get_attribute("href")))
    look(removed, "animal-removed")
    removed.get_by_role("button", name="Restore").click()
    expect(removed.get_by_role("status")).to_contain_text("was restored")
    removed.close()


def test_the_imports_and_one_of_them(page: Page, console: Console) -> None:
    page.goto(console.origin + "/live/animals/imports")
    look(page, "imports")
    page.get_by_role("link", name="animals.jsonl").click()
    look(page, "import")
    page.goto(console.origin + "/staging/animals/imports")
    look(page, "imports-none")


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
    context.close()


def test_the_open_panels_of_the_animals(page: Page, console: Console) -> None:
    page.goto(console.origin + "/live/animals")
    for panel in ("add", "import", "export"):
        page.locator(f"#{panel} summary").click()
    look(page, "animals-panels")


def test_the_sign_in_page(browser: Browser, console: Console) -> None:
    page = browser.new_page()
    page.goto(console.origin + "/live/keys")
    page.get_by_label("Your token").fill("pets_op_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    look(page, "sign-in")
    page.close()


def test_the_page_of_a_404(context: BrowserContext, console: Console) -> None:
    page = context.new_page()
    page.goto(console.origin + "/live/keys/key_nobody")
    expect(page.get_by_role("heading", level=1)).to_have_text("404")
    expect(page.get_by_role("navigation", name="Sections")).to_be_visible()
    look(page, "not-found")
    page.close()
