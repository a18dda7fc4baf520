"""The landing page and the reference page in a real Chromium. They must send no requests to other hosts."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from harness.backends import program
from harness.browsers import look
from harness.servers import Key, Server
from petstore.keys import Environment
from petstore.operations import OPERATIONS, deprecated_operations
from petstore.web.documents import as_json, openapi_document
from tests.interface import DOCUMENTED

pytestmark = pytest.mark.on("sqlite-lmdb")  # slow, and pages look the same on all backends

NAMES = [operation.name for operation in OPERATIONS]


class Tab:
    """A browser tab that records its requests and errors."""

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self.page = context.new_page()
        self._origin = f"{server.origin}/"
        self._requested: list[str] = []
        self._faults: list[str] = []
        self.page.on("request", lambda request: self._requested.append(request.url))
        self.page.on("pageerror", lambda error: self._faults.append(str(error)))
        self.page.on("console", lambda message: self._faults.append(message.text) if message.type == "error" else None)

    def assert_no_foreign_requests_and_no_faults(self) -> None:
        assert self._requested
        assert [url for url in self._requested if not url.startswith((self._origin, "data:"))] == []
        faults = [fault for fault in self._faults if not fault.startswith("Failed to load resource")]
        assert faults == []  # a 401 is not a fault


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One context for all tests, so that scripts are compiled once. Pages store data only for their own tab."""
    opened = browser.new_context(viewport={"width": 1280, "height": 800})
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    """A new tab. Any request to another host and any error in the tab makes the test fail."""
    tab = Tab(context, server)
    yield tab.page
    tab.page.close()
    tab.assert_no_foreign_requests_and_no_faults()


@pytest.fixture(scope="module")
def reference_tab(context: BrowserContext, server: Server) -> Iterator[Tab]:
    tab = Tab(context, server)
    open_reference(tab.page, server)
    yield tab
    tab.page.close()


@pytest.fixture
def reference(reference_tab: Tab) -> Iterator[Page]:
    """The reference page in a shared tab, because it takes a second to load. Tests must not fill in its forms.

    Staging is selected, and the key is empty.
    """
    reference_tab.page.click("text=Staging")
    reference_tab.page.fill("#key", "")
    yield reference_tab.page
    reference_tab.assert_no_foreign_requests_and_no_faults()


@pytest.fixture
def staging_key(server: Server) -> Key:
    return server.key(environment="staging")


def open_reference(page: Page, server: Server, key: Key | None = None) -> None:
    page.goto(server.origin + "/docs")
    page.wait_for_selector("#getPet .summary button")
    if key is not None:
        page.fill("#key", key.secret)


def show(page: Page, operation: str) -> None:
    """Opens an operation unless it is already open."""
    button = page.locator(f"#{operation} .summary button")
    if button.get_attribute("aria-expanded") == "false":
        button.click()


def execute(page: Page, operation: str) -> str:
    """Submits the form as it is filled in. Returns the text of the response."""
    page.click(f"#{operation} button.execute")
    page.wait_for_selector(f"#{operation} .answer")
    return page.inner_text(f"#{operation} .answer")


def test_the_reference_page_shows_the_operations_and_asks_nobody_else(reference: Page) -> None:
    shown = reference.inner_text("main")
    summaries = [DOCUMENTED[name]["summary"] for name in NAMES]
    for text in ("Petstore API", "Rate limits", "5 December 2030", *summaries):
        assert text in shown
    for operation in OPERATIONS:
        assert reference.locator(f"#{operation.name}").count() == 1, operation.name
        assert reference.locator(f"#{operation.name} .badge:has-text('deprecated')").count() == (
            operation.deprecation is not None
        )


def test_execute_on_the_untouched_example_adds_the_animal_to_staging(
    server: Server, reference: Page, staging_key: Key
) -> None:
    reference.fill("#key", staging_key.secret)
    show(reference, "createPet")
    answer = execute(reference, "createPet")
    assert answer.startswith("Response 201")
    assert '"name": "Rex"' in answer
    pets = server.act(lambda backends: backends.stores["staging"].pets.page(after=0, limit=1000, status=None)).pets
    assert pets[-1].name == "Rex"


def test_every_operation_can_be_tried_from_the_reference_page(server: Server, page: Page) -> None:
    server.fill(1)
    open_reference(page, server)
    page.click("text=Live")
    page.fill("#key", server.key().secret)
    for operation in NAMES:
        show(page, operation)
        assert execute(page, operation).startswith("Response 20"), operation


WRONG = (
    ("listPets", "limit", "101", "limit must be a whole number from 1 to 100."),
    ("listPets", "limit", "abc", "limit must be a whole number from 1 to 100."),
    ("listPets", "cursor", "AAAA", "cursor is not valid: start again without it."),
    ("getPet", "petId", "abc", "There is no such animal."),
    ("createPet", "Idempotency-Key", "order 17", "Idempotency-Key must be given once"),
    ("createPet", "Request body", "", "The body is missing"),
)


@pytest.mark.thorough
def test_wrong_values_are_sent_and_the_error_replaces_the_last_response(
    server: Server, page: Page, staging_key: Key
) -> None:
    server.fill(1, "staging")
    open_reference(page, server, staging_key)
    for operation in NAMES:
        show(page, operation)
    for operation, label, value, message in WRONG:
        field = page.locator(f"#{operation} [aria-label='{label}']")
        right = field.input_value()
        assert execute(page, operation).startswith("Response 20"), label
        field.fill(value)
        page.click(f"#{operation} button.execute")
        page.wait_for_selector(f"#{operation} .answer .status.bad")
        answer = page.inner_text(f"#{operation} .answer")
        assert message in answer, label
        assert re.match(r"Response 4\d\d in \d+ ms\n", answer), label
        field.fill(right)
        page.click(f"#{operation} button.execute")
        page.wait_for_selector(f"#{operation} .answer .status.good")


def test_the_button_names_the_environment(reference: Page) -> None:
    show(reference, "getPet")
    operation = reference.locator("#getPet")
    assert operation.get_by_role("button", name="Execute on staging", exact=True).count() == 1
    reference.click("text=Live")
    assert operation.get_by_role("button", name="Execute on live", exact=True).count() == 1


def test_an_incomplete_key_is_noticed_before_a_request(reference: Page, staging_key: Key) -> None:
    for secret in ("garbage", staging_key.secret[:-1], staging_key.secret + "x"):
        reference.fill("#key", secret)
        assert reference.inner_text("#key-hint") == "", "not while it is typed"
        reference.press("#key", "Tab")
        assert reference.inner_text("#key-hint").startswith("This is not a complete key. A key consists of pets_test_")
    for secret in (staging_key.secret, ""):
        reference.fill("#key", secret)
        reference.press("#key", "Tab")
        assert reference.inner_text("#key-hint") == ""


def test_a_link_to_the_guide_stays_in_the_tab_and_the_bar_does_not_cover_its_target(reference: Page) -> None:
    show(reference, "listPets")
    tabs = len(reference.context.pages)
    for text, heading in (("Strict handling", "strict-handling"), ("Caching", "caching")):
        reference.click(f"#listPets a >> text={text}")
        assert reference.evaluate("location.hash") == f"#{heading}"
        top = reference.locator(f"#{heading}").bounding_box()
        bar = reference.locator(".bar").bounding_box()
        assert top is not None and bar is not None and bar["height"] <= top["y"] < bar["height"] + 100
    assert len(reference.context.pages) == tabs


def test_the_page_explains_the_headers_of_a_response(reference: Page) -> None:
    show(reference, "listPets")
    described = {
        name: header["description"].replace("`", "")
        for name, header in DOCUMENTED["listPets"]["responses"]["429"]["headers"].items()
    }
    response = reference.locator("#listPets .response:has(.status:text-is('429'))")
    response.locator("summary").click()
    assert response.locator("dt").all_inner_texts() == list(described)
    assert response.locator("dd").all_inner_texts() == list(described.values())


def test_a_sample_of_a_create_can_be_retried(reference: Page) -> None:
    show(reference, "createPet")
    (key,) = DOCUMENTED["createPet"]["parameters"][0]["schema"]["examples"]
    for language in RUN:
        reference.click(f"#createPet .languages >> text={language}")
        assert key in reference.inner_text("#createPet .samples pre")


def test_without_a_key_the_answer_is_401(reference: Page) -> None:
    show(reference, "listPets")
    answer = execute(reference, "listPets")
    assert answer.startswith("Response 401")
    assert "unauthorized" in answer
    assert "undefined" not in answer


@pytest.mark.thorough
def test_staging_is_selected_and_keys_are_kept_for_the_tab_alone(
    server: Server, page: Page, browser: Browser, staging_key: Key
) -> None:
    open_reference(page, server, staging_key)
    assert page.is_checked("[value=staging]")
    page.click("text=Live")
    assert page.input_value("#key") == ""
    page.fill("#key", "pets_live_mine")
    page.reload()
    page.wait_for_selector("#getPet .summary button")
    page.wait_for_function("document.getElementById('key').value !== ''")
    assert page.is_checked("[value=live]")
    assert page.input_value("#key") == "pets_live_mine"
    page.click("text=Staging")
    assert page.input_value("#key") == staging_key.secret
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    other = page.context.new_page()
    open_reference(other, server)
    assert other.input_value("#key") == ""
    assert other.is_checked("[value=staging]")
    other.close()


@pytest.mark.thorough
def test_a_key_of_the_other_environment_switches_to_its_own_and_loses_no_key(
    server: Server, page: Page, staging_key: Key
) -> None:
    live = server.key()
    open_reference(page, server, staging_key)
    show(page, "listPets")
    page.fill("#key", live.secret)
    assert page.is_checked("[value=live]")
    assert page.input_value("#key") == live.secret
    assert page.inner_text("#key-hint") == "This is a live key. Requests now go to live."
    assert execute(page, "listPets").startswith("Response 200")
    page.click("text=Staging")
    assert page.input_value("#key") == staging_key.secret
    assert page.inner_text("#key-hint") == ""
    page.fill("#key", "")
    page.locator("#key").press_sequentially("pets_live_typed")  # an incomplete prefix is not a staging key
    assert page.is_checked("[value=live]")
    page.reload()
    page.wait_for_function("document.getElementById('key').value !== ''")
    assert page.input_value("#key") == "pets_live_typed"
    page.click("text=Staging")
    assert page.input_value("#key") == ""


@pytest.mark.thorough
@pytest.mark.parametrize("environment", ["staging", "live"])
def test_strict_handling_can_be_asked_for(
    server: Server, page: Page, staging_key: Key, environment: Environment
) -> None:
    open_reference(page, server, staging_key if environment == "staging" else server.key())
    show(page, "createPet")
    prefer = page.locator("#createPet [aria-label=Prefer]")
    suggested = prefer.evaluate("field => [...field.list.options].map((option) => option.value)")
    assert (
        suggested == DOCUMENTED["createPet"]["parameters"][-1]["schema"]["examples"] and "handling=strict" in suggested
    )
    prefer.fill("handling=strict")
    page.fill("#createPet textarea", '{"id": 1, "name": "Rex", "categoryId": 1}')
    page.click("#createPet .languages >> text=Python")
    assert "strict=True" in page.inner_text("#createPet .samples pre")
    answer = execute(page, "createPet")
    assert answer.startswith("Response 400") and "is not a member of this body" in answer
    page.click("#createPet .answer summary")
    assert "preference-applied: handling=strict" in page.inner_text("#createPet .answer")
    prefer.fill("")
    with page.expect_request("**/pets") as sent:
        page.click("#createPet button.execute")
    assert "prefer" not in sent.value.headers
    page.wait_for_selector("#createPet .answer >> text=201")


@pytest.mark.thorough
def test_an_error_can_be_asked_for_on_staging(server: Server, page: Page, staging_key: Key) -> None:
    open_reference(page, server, staging_key)
    show(page, "createPet")
    page.fill("#createPet [aria-label=Prefer]", "error=unavailable, delay=1")
    assert "-H 'Prefer: error=unavailable, delay=1'" in page.inner_text("#createPet .samples pre")
    assert execute(page, "createPet").startswith("Response 503")
    page.click("#createPet .answer summary")
    assert "preference-applied: error=unavailable, delay=1" in page.inner_text("#createPet .answer")


def with_servers(page: Page, server: Server, live: str, staging: str) -> None:
    """Opens the reference page of a service with these public addresses."""
    document = as_json(openapi_document(live, staging, 0))
    page.route("**/openapi.json", lambda route: route.fulfill(body=document, content_type="application/json"))
    open_reference(page, server)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("live", "staging"),
    [
        ("https://api.petstore.test/v1", "https://api.petstore.test/staging/v1"),
        ("https://api.petstore.test/v1", "https://staging.petstore.test/v1"),
    ],
    ids=["one host", "two hosts"],
)
def test_requests_stay_at_the_origin_whatever_the_public_addresses_are(
    server: Server, page: Page, staging_key: Key, live: str, staging: str
) -> None:
    with_servers(page, server, live, staging)
    page.fill("#key", staging_key.secret)
    show(page, "createPet")
    assert execute(page, "createPet").startswith("Response 201")
    page.click("text=Live")
    assert server.url("/pets") in page.inner_text("#createPet .samples pre")


@pytest.mark.thorough
def test_at_the_host_name_of_staging_live_cannot_be_chosen(server: Server, page: Page, staging_key: Key) -> None:
    with_servers(page, server, "https://api.petstore.test/v1", server.url("", "staging"))
    assert not page.is_visible("text=Live")
    page.fill("#key", "pets_live_mine")
    assert page.inner_text("#key-hint") == "This is a live key, but live is not available at this address."
    page.fill("#key", staging_key.secret)
    show(page, "createPet")
    assert execute(page, "createPet").startswith("Response 201")


@pytest.mark.thorough
def test_an_address_with_the_name_of_an_operation_opens_it(server: Server, page: Page) -> None:
    page.goto(server.origin + "/docs#createPet")
    page.wait_for_selector("#createPet button.execute")
    page.click("nav >> text=List animals")
    page.wait_for_selector("#listPets button.execute")


RUN: dict[str, Callable[[str], list[str]]] = {
    "curl": lambda text: ["bash", "-c", text.replace("curl ", "curl --silent --show-error --fail ", 1)],
    "Python": lambda text: [sys.executable, "-c", text],
    "JavaScript": lambda text: ["node", "--input-type=module", "--eval", text],
}

NEEDS = {"curl": "Nothing", "Python": "pip install ./petstore_client-*.whl", "JavaScript": "Nothing"}


@pytest.fixture(scope="module")
def samples(context: BrowserContext, server: Server) -> Iterator[Page]:
    """The reference page with every operation open and filled in."""
    tab = Tab(context, server)
    open_reference(tab.page, server, server.key(environment="staging"))
    for operation in NAMES:
        show(tab.page, operation)
    body = '{\n  "name": "Grüße aus \\"Bo\'\'s\\" Haus",\n  "categoryId": 9223372036854775807\n}'
    tab.page.fill("#createPet [aria-label='Request body']", body)
    tab.page.select_option("#listPets [aria-label=status]", "available")
    yield tab.page
    tab.page.close()
    tab.assert_no_foreign_requests_and_no_faults()


@pytest.mark.thorough
@pytest.mark.parametrize("language", RUN)
def test_the_code_samples_work_as_they_stand(server: Server, samples: Page, language: str) -> None:
    program({"curl": "curl", "Python": sys.executable, "JavaScript": "node"}[language])
    server.fill(1, "staging")
    secret = samples.input_value("#key")
    samples.fill("#createPet [aria-label=Idempotency-Key]", f"order's {language}".replace(" ", "-"))
    samples.click(f"#listPets .languages >> text={language}")
    for operation in NAMES:
        sample = samples.inner_text(f"#{operation} .samples pre")
        assert secret not in sample
        assert NEEDS[language] in sample.splitlines()[0]
        done = subprocess.run(
            RUN[language](sample),
            env=os.environ | {"PETSTORE_API_KEY": secret}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, sample + done.stderr
        assert "available" in done.stdout, sample + done.stdout
    newest = server.act(lambda backends: backends.stores["staging"].pets.page(after=0, limit=1000, status=None)).pets[
        -1
    ]
    assert (newest.name, newest.category_id) == ("Grüße aus \"Bo''s\" Haus", 2**63 - 1)


@pytest.mark.parametrize(
    ("base", "is_allowed"),
    [
        ("http://127.0.0.1:8080/v1", False),
        ("http://localhost/v1", False),
        ("http://[::1]:8080/v1", False),
        ("https://pets.example/v1", False),
        ("http://pets.example/v1", True),
        ("http://localhost.example/v1", True),
    ],
)
def test_the_python_sample_allows_http_to_another_machine(samples: Page, base: str, is_allowed: bool) -> None:
    """Without `allow_http=True`, the client refuses to send the key unencrypted."""
    address = samples.evaluate("[...document.scripts].find(script => script.type === 'module').src")
    sample = samples.evaluate(
        """async ([address, base]) => {
          const { SAMPLES } = await import(new URL("samples.js", address));
          return SAMPLES.Python({ base, path: "/pets", query: {}, headers: {}, method: "GET", operation: "listPets" });
        }""",
        [address, base],
    )
    assert ("allow_http=True" in sample) == is_allowed


@pytest.mark.thorough
def test_the_reference_page_looks_well_and_passes_axe(server: Server, page: Page, staging_key: Key) -> None:
    open_reference(page, server, staging_key)
    look(page, "reference")
    for operation in NAMES:
        show(page, operation)
    execute(page, "createPet")
    page.evaluate("for (const each of document.querySelectorAll('#createPet details')) each.open = true")
    page.evaluate("scrollTo(0, 0)")
    look(page, "reference-opened")


@pytest.mark.thorough
def test_the_landing_page_looks_well_and_passes_axe(server: Server, page: Page) -> None:
    page.goto(server.origin + "/")
    look(page, "landing")


def test_the_landing_page_leads_on(server: Server, page: Page) -> None:
    page.goto(server.origin + "/")
    assert [code.inner_text() for code in page.locator("dd").all()] == [server.url(""), server.url("", "staging")]
    page.click("text=Guide")
    page.wait_for_selector("#guide h2")
    assert page.evaluate("location.pathname + location.hash") == "/docs#guide"
    page.click(".brand")
    page.wait_for_selector("text=adoption")
    for name in ("Reference", "OpenAPI"):
        href = page.locator(f"nav a:has-text('{name}')").get_attribute("href")
        assert page.request.get(f"{server.origin}/{href}").ok


@pytest.mark.thorough
def test_pages_follow_the_colours_of_the_system(server: Server, page: Page, reference: Page) -> None:
    page.goto(server.origin + "/")
    for shown in (page, reference):
        grounds = []
        for scheme in ("dark", "light"):
            shown.emulate_media(color_scheme="light" if scheme == "light" else "dark")
            grounds.append(shown.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(set(grounds)) == 2


@pytest.mark.thorough
def test_after_the_sunset_the_page_lacks_the_deprecated_operation(
    start: Callable[..., Server], browser: Browser
) -> None:
    own = start()
    own.move_clock(max(each.end for each in deprecated_operations()) - time.time() + 1)
    page = browser.new_page()
    page.goto(own.origin + "/docs")
    page.wait_for_selector("#createPet .summary button")
    assert page.locator("h3").count() == len(OPERATIONS) - len(deprecated_operations())
    assert not [each.name for each in deprecated_operations() if each.name in page.content()]
    page.close()
