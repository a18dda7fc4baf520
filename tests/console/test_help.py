"""The help page, and the link to the API reference."""

import re
from pathlib import Path

from harness.consoles import ConsoleClient, running_console, text_of
from harness.servers import Server


def test_every_page_links_to_help_and_to_the_reference(operator: ConsoleClient) -> None:
    for page in ("overview", "keys", "nowhere"):
        text = operator.get(f"/staging/{page}").text
        assert 'href="/staging/help"' in text and 'href="/docs"' in text


def test_help_is_the_guide_and_its_links_lead_somewhere(operator: ConsoleClient) -> None:
    page = operator.get("/live/help")
    assert "A session ends after twelve hours" in text_of(page)
    guide = page.text.partition('<div class="guide">')[2].partition("</main>")[0]
    assert "&lt;" not in guide
    links = re.findall(r'href="([^"]+)"', guide)
    assert links and all(f'id="{link.removeprefix("#")}"' in guide for link in links)


def test_the_reference_is_that_of_the_service(tmp_path: Path, operator: ConsoleClient, server: Server) -> None:
    assert operator.get("/docs").headers["location"] == f"{server.origin}/docs"
    with running_console(Server(tmp_path / "data"), "--service-url", "https://api.example.com/") as own:
        assert own.sign_in("ada").get("/docs").headers["location"] == "https://api.example.com/docs"
