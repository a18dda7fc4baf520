"""Viewers can see every page, and no page offers them actions that they are not allowed to perform."""

import re
from collections.abc import Iterator

import pytest

from harness.consoles import Console, ConsoleClient, running_console, text_of
from harness.servers import Server
from tests.console.every_page import FORM_ROUTES, GET_ROUTES, EveryPage, fill

POSTS = re.compile(
    r'<form[^>]* method="post"[^>]* action="([^"]+)"|(?:formaction|hx-(?:post|put|patch|delete))="([^"]+)"'
)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    server = Server(tmp_path_factory.mktemp("viewers") / "data")
    fill(server)
    with running_console(server) as running:
        yield running


@pytest.fixture(scope="module")
def every_page(console: Console) -> EveryPage:
    return EveryPage(console)


@pytest.fixture(scope="module")
def viewer(console: Console) -> ConsoleClient:
    return console.sign_in("Victor", "viewer")


def posts(text: str) -> set[str]:
    return {form or other for form, other in POSTS.findall(text)} - {"/sign-out", "/sign-out/everywhere"}


@pytest.mark.thorough
@pytest.mark.parametrize("route", GET_ROUTES)
def test_no_page_offers_a_viewer_a_change(every_page: EveryPage, viewer: ConsoleClient, route: str) -> None:
    for address in every_page.addresses(route):
        page = viewer.get(address)
        assert posts(page.text) == set(), address
        assert (page.status_code == 403) == (route in FORM_ROUTES), address
        assert route not in FORM_ROUTES or "Your role is viewer" in text_of(page)
        links = {
            link for link in re.findall(r'(?:href|hx-get)="(/[^"]*)"', page.text) if not link.startswith("/static/")
        }
        for link in links:
            assert viewer.get(link.replace("&amp;", "&")).status_code != 403, (address, link)


def test_an_operator_is_offered_the_changes(every_page: EveryPage, console: Console) -> None:
    operator = console.sign_in("Olga")
    offered = {
        post
        for route in GET_ROUTES
        for address in every_page.addresses(route)
        for post in posts(operator.get(address).text)
    }
    kinds = {re.sub(r"(key|imp)_\w+|(?<=^/live/jobs/).*", "X", post).removeprefix("/live") for post in offered}
    assert kinds >= {
        "/animals", "/animals/selected", "/animals/restore", "/animals/imports/X/undo", "/jobs/X", "/operators",
        "/keys/X/rotate", "/keys/X/end-old-secret", "/keys/X/revoke", "/keys/identify", "/bans/X/lift",
    }  # fmt: skip
