"""Several addresses of one environment: they share animals, counters, tags and cursors, and their clocks agree."""

from petstore.verify.findings import Finding, Findings, Skip, expect, expect_status, unexpected
from petstore.verify.limits import OTHER_GATE, falls_by_one
from petstore.verify.session import Session, new_name

CLOCKS_MAX = 2  # seconds between two addresses
OTHER_STORE = "the addresses do not share a store (--store)"


def visible_everywhere(session: Session) -> Findings:
    """An animal added through one address is in the next list through every other."""
    status = session.end_of_list().status
    for address in (*session.addresses, *session.addresses):
        session.newest(address)  # so that each has the list in memory
    for writer in session.addresses:
        name = new_name()
        added = session.add(at=writer, name=name, status=status)
        yield from expect_status(added, 201)
        for reader in session.addresses:
            pages = session.newest(reader) if reader != writer else []
            if pages and not any(pet.get("name") == name for page in pages for pet in page.pets):
                yield unexpected(f"{name}, added through {writer.url}, through {reader.url}", pages[-1], OTHER_GATE)


def same_counters(session: Session) -> Findings:
    """All addresses count a key's requests together."""
    responses = [session.send("GET /pets?limit=1", at=address) for _ in range(2) for address in session.addresses]
    yield from falls_by_one(responses, OTHER_GATE)
    resets = [each.number("x-ratelimit-reset") or 0 for each in responses]
    limits = {each.value("x-ratelimit-limit") for each in responses}
    if len(limits) == 1 and len(set(resets)) > 2:
        yield Finding("the same `X-RateLimit-Reset` through all addresses", f"{sorted(set(resets))}", None, OTHER_GATE)


def same_tags(session: Session) -> Findings:
    """All addresses send the same list with the same `ETag`."""
    first, *others = (session.send("GET /pets?limit=5", at=address) for address in session.addresses)
    for other in others:
        yield from expect(other.body == first.body, f"the list of {first.address.url}", other, OTHER_STORE)
        yield from expect(other.value("etag") == first.value("etag"), f"`ETag: {first.value('etag')}`", other)


def same_cursors(session: Session) -> Findings:
    """A cursor from one address is valid through every other."""
    pages = [session.send("GET /pets?limit=1", at=address) for address in session.addresses]
    queries = [session.next_page(page) for page in pages]
    if not all(queries):
        raise Skip("there are fewer than two animals; add some, or use --write")
    expected = session.send(f"GET /pets?{queries[0]}")
    for query, reader in zip(queries, [*session.addresses[1:], session.addresses[0]], strict=True):
        page = session.send(f"GET /pets?{query}", at=reader)
        yield from expect((page.status, page.body) == (200, expected.body), "the next page", page, OTHER_STORE)


def same_time(session: Session) -> Findings:
    """The clocks of all addresses differ by less than two seconds."""
    offsets = {}
    for address in session.addresses:
        response = session.send("GET /pets?limit=1", at=address)
        offsets[address.url] = response.date - response.received
    fast, slow = max(offsets, key=offsets.__getitem__), min(offsets, key=offsets.__getitem__)
    apart = offsets[fast] - offsets[slow]
    if apart >= CLOCKS_MAX + 1:  # `Date` has whole seconds
        cause = f"the clock of {fast} is ahead; synchronise the clocks (NTP)"
        yield Finding("clocks that differ by less than 2 s", f"{fast} is {apart:.0f} s ahead of {slow}", None, cause)
