"""The reference page in a real Chromium, with no way to the outside."""

from pathlib import Path

from playwright.sync_api import Browser, Request

from tests.servers import Server


def test_the_reference_page_shows_the_operations_and_asks_nobody_else(
    server: Server, browser: Browser, tmp_path: Path
) -> None:
    page = browser.new_page()
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(_url(request)))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(server.origin + "/docs")
    page.wait_for_selector("#operations-pets-listPets")
    shown = page.inner_text("#reference")
    for text in ("List animals", "Add an animal", "Get an animal", "Petstore"):
        assert text in shown
    assert page.locator(".opblock-deprecated").count() == 1
    assert {url.split("/docs")[0].split("/openapi")[0] for url in asked if not url.startswith("data:")} == {
        server.origin
    }
    assert faults == []
    page.close()


def test_an_operation_can_be_tried_from_the_reference_page(server: Server, browser: Browser) -> None:
    key = server.key()
    server.fill(1)
    page = browser.new_page()
    page.goto(server.origin + "/docs")
    page.click("button.authorize")
    page.fill("input[aria-label='auth-bearer-value']", key.secret)
    page.click("button.modal-btn.authorize")
    page.click("button.btn-done")
    page.click("#operations-pets-listPets .opblock-summary-control")
    page.click("#operations-pets-listPets button.execute")
    page.wait_for_selector("#operations-pets-listPets .live-responses-table .response-col_status")
    status = page.inner_text("#operations-pets-listPets .live-responses-table .response .response-col_status")
    assert status.startswith("200")
    assert "categoryId" in page.inner_text("#operations-pets-listPets .live-responses-table")
    page.close()


def _url(request: Request) -> str:
    return request.url
