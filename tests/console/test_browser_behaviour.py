"""Pages in a real Chromium: plots, paging, the keyboard, the content security policy, sessions, and no scripts."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from harness.browsers import look
from harness.consoles import Console, running_console
from harness.served import wait_for
from harness.servers import Server, serving
from petstore.usage import HOUR, OperationUsage
from tests.console.browser_steps import add_pet, open_section


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Uses one pair of backends and no running service, because neither makes a difference in a browser."""
    return Server(tmp_path_factory.mktemp("browsing") / "data")


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    # Just after the start of a six-hour bar, so that no new bar starts during a test.
    server.move_clock(6 * HOUR - time.time() % (6 * HOUR) + 60)
    with running_console(server) as running:
        yield running


def test_an_invalid_animal_is_refused_and_the_form_keeps_its_values(page: Page) -> None:
    open_section(page, "Animals")
    page.get_by_text("Add an animal").click()
    page.locator("#add").get_by_label("Name").fill("Rex")
    page.locator("#add").get_by_label("Category id").fill("one")
    page.locator("#add").get_by_label("Status").select_option("sold")
    page.get_by_role("button", name="Add to live").click()
    expect(page.get_by_role("alert")).to_contain_text("categoryId must be a whole number")
    expect(page.locator("#add").get_by_label("Name")).to_have_value("Rex")
    expect(page.locator("#add").get_by_label("Category id")).to_have_value("one")
    expect(page.locator("#add").get_by_label("Status")).to_have_value("sold")


def test_requests_of_another_site_do_not_stop_the_link_from_signing_in(browser: Browser, tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data")) as own:
        images = [f'<img src="{own.origin}/sign-in?token={"A" * 42}{i}">' for i in range(10)]
        body = f'<a href="{own.link}">in</a>' + "".join(images)
        opened = browser.new_page()
        opened.route("http://elsewhere.example/", lambda route: route.fulfill(content_type="text/html", body=body))
        opened.goto("http://elsewhere.example/")
        opened.get_by_role("link", name="in").click()
        expect(opened.get_by_role("alert")).to_contain_text("This link cannot sign you in from here")
        opened.goto(own.link)
        expect(opened.get_by_text("Signed in as console")).to_be_visible()
        opened.close()


def test_scrolling_loads_more_rows(page: Page, server: Server, console: Console) -> None:
    server.fill(120, "staging")  # no other test of this file adds animals to staging
    page.goto(console.origin + "/staging/animals")
    expect(page.locator("#rows tr[id]")).to_have_count(50)
    for count in (100, 120):
        page.locator("#rows tr.more").scroll_into_view_if_needed()
        expect(page.locator("#rows tr[id]")).to_have_count(count)
    expect(page.locator("#rows tr.more")).to_have_count(0)


def test_a_file_of_another_type_is_refused_and_stays_chosen(page: Page, tmp_path: Path) -> None:
    open_section(page, "Animals")
    file = tmp_path / "animals.txt"
    file.write_text("Rex")
    page.locator("summary", has_text="Import a file").click()
    page.get_by_label("File (.jsonl, .csv or .json)").set_input_files(file)
    page.get_by_role("button", name="Import into live").click()
    expect(page.get_by_role("status")).to_contain_text("must end in .jsonl, .ndjson, .csv or .json")
    assert page.get_by_label("File (.jsonl, .csv or .json)").input_value().endswith("animals.txt")


def test_the_audit_log_is_filtered_while_typing(page: Page) -> None:
    open_section(page, "Audit")
    page.get_by_label("What").select_option("sign in")
    page.get_by_label("Who").fill("nobody of that name")
    expect(page.get_by_text("No matching entries")).to_be_visible()
    page.get_by_label("Who").fill("OPERATOR")
    expect(page.locator("#rows tr").first).to_contain_text("sign in")
    assert set(page.locator("#rows td[data-label=What]").all_inner_texts()) == {"sign in"}


def test_live_and_staging_look_different(page: Page, console: Console) -> None:
    band = page.locator(".banner")
    open_section(page, "Keys")
    live = band.evaluate("e => getComputedStyle(e).backgroundColor + getComputedStyle(e).backgroundImage")
    page.get_by_role("link", name="STAGING").click()
    expect(page).to_have_url(console.origin + "/staging/keys")
    expect(page.get_by_role("link", name="STAGING")).to_have_attribute("aria-current", "true")
    assert page.title().startswith("STAGING")
    assert live != band.evaluate("e => getComputedStyle(e).backgroundColor + getComputedStyle(e).backgroundImage")
    expect(page.get_by_text("This is test data. Live clients do not see it.")).to_be_visible()


def test_the_plot_shows_values_of_a_bar_and_refreshes(page: Page, server: Server, console: Console) -> None:
    key = server.key(environment="staging")
    start = int(time.time() + float(server.clock_file.read_text()))

    def use(requests: int) -> None:
        rows = [OperationUsage(key.id, start, "refused", requests, "listPets")]
        server.act(lambda backends: backends.stores["staging"].usage.add(rows, {}))

    use(4_000)
    page.goto(f"{console.origin}/staging/keys/{key.id}?span=month")
    refused = page.locator(".legend [data-class=refused]")
    expect(refused).to_have_text("4,000")
    plot = page.locator("#usage .u-over")
    plot.hover(position={"x": 5, "y": 50})
    expect(refused).to_have_text("0")
    expect(page.locator(".selected-bar")).not_to_be_empty()
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] - 3, "y": 50})
    expect(refused).to_have_text("4,000")
    page.mouse.move(0, 0)
    expect(page.locator(".selected-bar")).to_be_empty()
    page.get_by_text("Usage as a table").click()
    use(1)
    expect(refused).to_have_text("4,001", timeout=15_000)
    expect(page.locator("#usage-table")).to_have_attribute("open", "")
    page.locator("#usage").focus()
    page.keyboard.press("ArrowLeft")
    expect(refused).to_have_text("4,001")
    page.keyboard.press("ArrowLeft")
    expect(refused).to_have_text("0")


@pytest.mark.thorough
def test_a_service_that_dies_appears_on_the_open_page(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as service, running_console(service) as own:
        signs = service.data / "metrics"
        assert wait_for(lambda: list(signs.glob("*.lock")))
        opened = browser.new_page()
        opened.goto(own.link)
        opened.goto(own.origin + "/live/overview")
        expect(opened.locator("#troubles")).to_be_empty()
        opened.evaluate(
            "() => { window.changes = 0; new MutationObserver(() => window.changes++)"
            ".observe(document.getElementById('troubles'), { childList: true, subtree: true }); }"
        )
        service.kill()
        for lock in signs.glob("*.lock"):
            os.utime(lock, (1_700_000_000, 1_700_000_000))
        refreshed = "**/overview/refresh*"
        trouble = "The service on this machine has not responded since 2023-11-14 22:13:20Z."
        expect(opened.locator("#troubles")).to_contain_text(trouble, timeout=15_000)
        assert opened.evaluate("window.changes") == 1
        with opened.expect_response(refreshed), opened.expect_response(refreshed):
            pass
        assert opened.evaluate("window.changes") == 1, "a screen reader would announce the same text again"
        look(opened, "overview-silent")
        opened.close()


def test_an_injected_script_in_a_name_is_blocked_by_the_policy(page: Page, console: Console) -> None:
    """The test disables the escaping of names, so that only the content security policy can stop the script."""
    open_section(page, "Animals")
    attack = "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'><style>body{display:none}</style>"
    number = add_pet(page, attack)
    expect(page.locator("#rows")).to_be_visible()
    page.goto(f"{console.origin}/live/animals?q={number}")
    expect(page.locator(f"#animal-{number} bdi").first).to_have_text(attack)
    assert page.evaluate("window.hit") is None

    def unescaped(route: Route) -> None:
        response = route.fetch()
        body = response.text().replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'")
        route.fulfill(response=response, body=body)

    page.add_init_script(
        "window.blocked = []; addEventListener('securitypolicyviolation', (e) => blocked.push(e.violatedDirective))"
    )
    page.route("**/live/animals?q=*", unescaped)
    page.reload()
    expect(page.locator(f"#animal-{number} img")).to_be_attached()
    page.wait_for_function("window.blocked.length >= 3")
    assert page.evaluate("window.hit") is None
    assert {"script-src-elem", "script-src-attr", "style-src-elem"} <= set(page.evaluate("window.blocked"))
    expect(page.locator("body")).to_be_visible()


def test_a_key_is_created_by_keyboard(page: Page, console: Console) -> None:
    page.goto(console.origin + "/staging/overview")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to main content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Hour")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.goto(console.origin + "/staging/keys/new")
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("By keyboard")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Contact")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("pro")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("By keyboard")
    expect(page.get_by_text("pro: 300 per minute")).to_be_visible()


def test_a_session_that_ends_leads_to_the_sign_in_page(page: Page, console: Console) -> None:
    open_section(page, "Animals")
    page.context.clear_cookies()
    page.get_by_label("Name or id").fill("anything")
    expect(page.get_by_label("Your token")).to_be_visible()


def test_signing_out_in_the_browser(page: Page, console: Console) -> None:
    page.get_by_role("button", name="Sign out", exact=True).click()
    expect(page.get_by_label("Your token")).to_be_visible()
    page.go_back()
    page.reload()
    expect(page.get_by_label("Your token")).to_be_visible()


def test_a_link_on_another_site_opens_the_page_of_a_signed_in_operator(page: Page, console: Console) -> None:
    """The browser does not send a strict cookie at first, but does so when the sign-in page reloads itself."""
    other = page.context.new_page()
    other.route("http://elsewhere.test/", lambda route: route.fulfill(
        body=f"<a href='{console.origin}/live/keys'>in</a>", content_type="text/html"))  # fmt: skip
    other.goto("http://elsewhere.test/")
    other.get_by_role("link", name="in").click()
    expect(other.get_by_role("heading", level=1)).to_have_text("Keys")


def test_pages_work_without_scripts(browser: Browser, console: Console, server: Server) -> None:
    server.fill(60)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(console.origin + "/live/animals")
    page.get_by_label("Your token").fill(console.add_operator(f"plain {console.port}"))
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(console.origin + "/live/animals")
    page.get_by_role("link", name="More").click()
    expect(page).to_have_url(re.compile("before="))
    number = page.locator("#rows td[data-label=Id]").first.inner_text()
    page.get_by_label(f"Select animal {number}", exact=True).check()
    page.get_by_role("group", name="Change the selected").get_by_role("button", name="sold").click()
    expect(page.get_by_role("status")).to_contain_text(" is now sold.")
    page.goto(console.origin + "/live/keys/new")
    page.get_by_role("button", name="Create the key").click()
    page.get_by_role("link", name="Revoke this key").click()
    page.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("status")).to_contain_text("The key is revoked")
    context.close()


def test_times_are_relative_and_show_the_zone_on_hover(page: Page, console: Console) -> None:
    open_section(page, "Audit")
    time_of_sign_in = page.locator("#rows time").first
    expect(time_of_sign_in).to_have_text(re.compile(r"^(now|\d+ (second|minute)s? ago)$"))
    title = time_of_sign_in.get_attribute("title") or ""
    assert re.search(r"(GMT|UTC)", title) and re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", title)


def test_slash_does_not_leave_a_field_in_which_it_is_typed(page: Page) -> None:
    open_section(page, "Audit")
    page.keyboard.press("/")
    expect(page.get_by_label("Who")).to_be_focused()
    page.get_by_label("Subject or detail").focus()
    page.keyboard.type("a/b")
    expect(page.get_by_label("Subject or detail")).to_have_value("a/b")


def test_an_export_of_the_search_has_the_animals_of_the_table(page: Page, console: Console, server: Server) -> None:
    mark = f"Exported {time.time_ns()}"
    for name in (f"{mark} one", f"{mark} two", "Not exported"):
        open_section(page, "Animals")
        add_pet(page, name)
    page.get_by_label("Name or id").fill(mark)
    expect(page.locator("#rows tr")).to_have_count(2)
    page.locator("#export summary").click()
    page.locator("#export [name=filter]").select_option("matching the search")
    page.get_by_role("button", name="Export live").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_text().count("\n") == 2
