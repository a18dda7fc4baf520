"""Paging through a list: links to the next page."""

from typing import Any

from petstore.verify.findings import Findings, Skip, expect, unexpected
from petstore.verify.listing import TOO_FEW
from petstore.verify.responses import Response, link_target
from petstore.verify.session import Session


def _first_page(session: Session) -> Response:
    """Returns a page that is not the last one. Raises Skip if there are too few animals."""
    response = session.send("GET /pets?limit=1")
    if not session.next_page(response):
        raise Skip(TOO_FEW)
    return response


def complete(session: Session) -> Findings:
    """Following the `next` links returns every animal exactly once. The last page has no `next` link."""
    whole = session.send("GET /pets?limit=100")
    if len(whole.pets) < 2:
        raise Skip(TOO_FEW)
    size = max(1, len(whole.pets) // 4)
    query = f"limit={size}"
    seen: list[dict[str, Any]] = []
    while query and len(seen) < len(whole.pets):
        page = session.send(f"GET /pets?{query}")
        following = whole.pets[len(seen) : len(seen) + size]
        if page.pets[: len(following)] != following:
            yield unexpected(f"the next {size} animals", page)
            return
        seen += page.pets
        query = session.next_page(page)
    if not session.next_page(whole):
        yield from expect(len(seen) == len(whole.pets) and not query, "no link after the last animal", page)
    yield from expect(len(seen) >= len(whole.pets), "a link to the next page", page, "a proxy removed `Link`")


def link_address(session: Session) -> Findings:
    """The link to the next page points to the address that the client used."""
    response = _first_page(session)
    address = session.addresses[0]
    target = link_target(response, "next").partition("?")[0]
    cause = "a proxy changes the path or the host; set --public-url or --staging-url"
    right = target == f"{address.url}/pets"
    yield from expect(right, f"`Link` to {address.url}/pets, not {target},", response, cause)
