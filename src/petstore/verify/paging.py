"""Paging through a list: links to the next page, and cursors."""

from typing import Any
from urllib.parse import parse_qs

from petstore.verify.findings import Findings, Skip, expect, expect_error
from petstore.verify.listing import TOO_FEW
from petstore.verify.session import Session
from petstore.verify.transport import Response, link_target


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
        seen += page.pets
        query = session.next_page(page)
        so_far = whole.pets[: len(seen)]
        yield from expect(seen[: len(so_far)] == so_far, f"the next {size} animals", page)
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


def link_parameters(session: Session) -> Findings:
    """The link to the next page keeps `limit` and `status`."""
    for status in ("available", "pending", "sold"):
        response = session.send(f"GET /pets?limit=1&status={status}")
        if query := session.next_page(response):
            kept = parse_qs(query)
            right = (kept.get("limit"), kept.get("status")) == (["1"], [status])
            yield from expect(right, f"a link with limit=1 and status={status}", response)
            return
    raise Skip("no status has two animals; add some, or use --write")


def cursors(session: Session) -> Findings:
    """A cursor is valid with any `limit`. An altered cursor is rejected with 400."""
    cursor = parse_qs(session.next_page(_first_page(session))).get("cursor", [""])[0]
    one, two = (session.send(f"GET /pets?limit={limit}&cursor={cursor}") for limit in (1, 2))
    yield from expect(bool(one.pets) and two.pets[:1] == one.pets, "the same next animal with another limit", two)
    altered = cursor[:-1] + ("A" if cursor[-1] != "A" else "B")
    yield from expect_error(session.send(f"GET /pets?cursor={altered}"), 400, "invalid_parameter")
