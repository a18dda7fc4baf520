"""How the pages behave in a real Chromium: plots, paging, the keyboard, the policy, sessions, and no scripts at all."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from petstore.usage import HOUR, Usage
from tests.console.hands import add_animal, goto
from tests.consoles import Console, running_console
from tests.servers import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """What a browser does is the same whatever is behind: one pair of backends will do, and no service."""
    return Server(tmp_path_factory.mktemp("browsing") / "data")


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    # Just behind the beginning of a bar of six hours: no bar begins while a test looks at one.
    server.move_clock(6 * HOUR - time.time() % (6 * HOUR) + 60)
    with running_console(server) as running:
        yield running


def test_a_bad_animal_is_refused_and_what_was_typed_stays(page: Page) -> None:
    goto(page, "Animals")
    page.get_by_text("Add an animal").click()
    page.locator("#add").get_by_label("Name").fill("Rex")
    page.locator("#add").get_by_label("Category id").fill("one")
    page.locator("#add").get_by_label("Status").select_option("sold")
    page.get_by_role("button", name="Add to live").click()
    expect(page.get_by_role("alert")).to_contain_text("categoryId must be a whole number")
    expect(page.locator("#add").get_by_label("Name")).to_have_value("Rex")
    expect(page.locator("#add").get_by_label("Category id")).to_have_value("one")
    expect(page.locator("#add").get_by_label("Status")).to_have_value("sold")


def test_the_printed_link_signs_in_when_it_is_opened_whatever_another_page_asks_for(
    browser: Browser, tmp_path: Path
) -> None:
    with running_console(Server(tmp_path / "data")) as own:
        images = [f'<img src="{own.origin}/sign-in?token={"A" * 42}{i}">' for i in range(10)]
        body = f'<a href="{own.link}">in</a>' + "".join(images)
        opened = browser.new_page()
        opened.route("http://elsewhere.example/", lambda route: route.fulfill(content_type="text/html", body=body))
        opened.goto("http://elsewhere.example/")
        opened.get_by_role("link", name="in").click()
        expect(opened.get_by_role("alert")).to_contain_text("This address does not sign you in")
        opened.goto(own.link)
        expect(opened.get_by_text("Signed in as console")).to_be_visible()
        opened.close()


def test_the_table_goes_on_as_it_is_scrolled(page: Page, server: Server, console: Console) -> None:
    server.fill(120, "staging")  # the only test of this file that does
    page.goto(console.origin + "/staging/animals")
    expect(page.locator("#rows tr[id]")).to_have_count(50)
    for count in (100, 120):
        page.locator("#rows tr.more").scroll_into_view_if_needed()
        expect(page.locator("#rows tr[id]")).to_have_count(count)
    expect(page.locator("#rows tr.more")).to_have_count(0)


def test_a_file_of_another_kind_is_refused_and_stays_chosen(page: Page, tmp_path: Path) -> None:
    goto(page, "Animals")
    file = tmp_path / "animals.txt"
    file.write_text("Rex")
    page.locator("summary", has_text="Import a file").click()
    page.get_by_label("File (.jsonl or .csv)").set_input_files(file)
    page.get_by_role("button", name="Import into live").click()
    expect(page.get_by_role("status")).to_contain_text("must end in .jsonl or .csv")
    assert page.get_by_label("File (.jsonl or .csv)").input_value().endswith("animals.txt")


def test_the_audit_log_is_filtered_as_one_types(page: Page) -> None:
    goto(page, "Audit")
    page.get_by_label("What").select_option("sign in")
    page.get_by_label("Who").fill("nobody of that name")
    expect(page.get_by_text("No matching entries")).to_be_visible()
    page.get_by_label("Who").fill("OPERATOR")
    expect(page.locator("#rows tr").first).to_contain_text("sign in")
    assert set(page.locator("#rows td[data-label=What]").all_inner_texts()) == {"sign in"}


def test_nobody_misses_which_environment_it_is(page: Page, console: Console) -> None:
    band = page.locator(".band")
    goto(page, "Keys")
    live = band.evaluate("e => getComputedStyle(e).backgroundColor + getComputedStyle(e).backgroundImage")
    page.get_by_role("link", name="STAGING").click()
    expect(page).to_have_url(console.origin + "/staging/keys")
    expect(page.get_by_role("link", name="STAGING")).to_have_attribute("aria-current", "true")
    assert page.title().startswith("STAGING")
    assert live != band.evaluate("e => getComputedStyle(e).backgroundColor + getComputedStyle(e).backgroundImage")
    expect(page.get_by_text("no client of live sees this")).to_be_visible()


def test_the_plot_tells_its_values_and_refreshes_by_itself(page: Page, server: Server, console: Console) -> None:
    key = server.key(environment="staging")
    start = int(time.time() + float(server.clock_file.read_text()))

    def use(requests: int) -> None:
        rows = [Usage(key.id, start, "refused", requests)]
        server.act(lambda backends: backends.stores["staging"].add_usage(rows, {}))

    use(4_000)
    page.goto(f"{console.origin}/staging/keys/{key.id}?span=month")
    refused = page.locator(".legend [data-answer=refused]")
    expect(refused).to_have_text("4,000")
    plot = page.locator("#usage .u-over")
    plot.hover(position={"x": 5, "y": 50})
    expect(refused).to_have_text("0")
    expect(page.locator(".pointed")).not_to_be_empty()
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] - 3, "y": 50})
    expect(refused).to_have_text("4,000")
    page.mouse.move(0, 0)
    expect(page.locator(".pointed")).to_be_empty()
    page.get_by_text("The figures as a table").click()
    use(1)
    expect(refused).to_have_text("4,001", timeout=15_000)
    expect(page.locator("#figures-table")).to_have_attribute("open", "")
    page.locator("#usage").focus()
    page.keyboard.press("ArrowLeft")
    expect(refused).to_have_text("4,001")
    page.keyboard.press("ArrowLeft")
    expect(refused).to_have_text("0")


def test_an_injected_script_in_a_name_is_blocked_by_the_policy(page: Page, console: Console) -> None:
    """Names are escaped. Should that ever be forgotten, as here on purpose, the policy stops what they bring along."""
    goto(page, "Animals")
    attack = "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'><style>body{display:none}</style>"
    number = add_animal(page, attack)
    expect(page.locator("#rows")).to_be_visible()
    page.goto(f"{console.origin}/live/animals?q={number}")
    expect(page.locator(f"#animal-{number} bdi")).to_have_text(attack)
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


def test_the_keyboard_is_enough(page: Page, console: Console) -> None:
    page.goto(console.origin + "/staging/overview")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
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
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("pro")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("By keyboard")
    expect(page.get_by_text("pro: 300 a minute")).to_be_visible()


def test_a_session_that_ends_leads_to_the_sign_in_page(page: Page, console: Console) -> None:
    goto(page, "Animals")
    page.context.clear_cookies()
    page.get_by_label("Name or id").fill("anything")
    expect(page.get_by_label("Your token")).to_be_visible()


def test_signing_out_by_hand(page: Page, console: Console) -> None:
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Your token")).to_be_visible()
    page.go_back()
    page.reload()
    expect(page.get_by_label("Your token")).to_be_visible()


def test_a_link_from_another_site_comes_in(page: Page, console: Console) -> None:
    """A strict cookie stays behind at first: the sign-in page reloads itself, and then it comes along."""
    other = page.context.new_page()
    other.route("http://elsewhere.test/", lambda route: route.fulfill(
        body=f"<a href='{console.origin}/live/keys'>in</a>", content_type="text/html"))  # fmt: skip
    other.goto("http://elsewhere.test/")
    other.get_by_role("link", name="in").click()
    expect(other.get_by_role("heading", level=1)).to_have_text("Keys")


def test_without_scripts_everything_still_works(browser: Browser, console: Console, server: Server) -> None:
    server.fill(60)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(console.origin + "/live/animals")
    page.get_by_label("Your token").fill(console.operator(f"plain {console.port}"))
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(console.origin + "/live/animals")
    page.get_by_role("link", name="more").click()
    expect(page).to_have_url(re.compile("after="))
    number = page.locator("#rows td[data-label=Id]").first.inner_text()
    page.get_by_label(f"Tick animal {number}", exact=True).check()
    page.get_by_role("group", name="Change the status").get_by_role("button", name="sold").click()
    expect(page.get_by_role("status")).to_contain_text("1 animal is now sold.")
    page.goto(console.origin + "/live/keys/new")
    page.get_by_role("button", name="Create the key").click()
    page.get_by_role("link", name="Revoke this key").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.get_by_role("status")).to_contain_text("The key is revoked")
    context.close()
