"""All addresses of an environment share animals, counters, entity tags and cursors."""

import math
import time
from typing import NamedTuple

from petstore.verify.findings import Finding, Findings, Skip, expect, expect_status, unexpected
from petstore.verify.limits import OTHER_GATE, expect_counted
from petstore.verify.listing import TOO_FEW
from petstore.verify.session import Session, new_name
from petstore.verify.transport import Address

CLOCKS_MAX = 2  # maximum difference between the clocks of two addresses, in seconds
SAMPLES = 4  # clock readings per address, spread over a second because each shows only whole seconds
OTHER_STORE = "the addresses do not share a store (--store)"


def visible_everywhere(session: Session) -> Findings:
    """An animal added through one address appears in the next list from every other address."""
    status = session.end_of_list().status
    for address in (*session.addresses, *session.addresses):
        session.newest(address)  # make the workers at each address cache the list
    for writer in session.addresses:
        name = new_name()
        added = session.add(at=writer, name=name, status=status)
        yield from expect_status(added, 201)
        for reader in session.addresses:
            pages = session.newest(reader) if reader != writer else []
            if pages and not any(pet.get("name") == name for page in pages for pet in page.pets):
                expected = f"{name} (added through {writer.url}) in the list from {reader.url}"
                yield unexpected(expected, pages[-1], OTHER_GATE)


def same_counters(session: Session) -> Findings:
    """All addresses share a key's counters."""
    first, second = ([session.send("GET /pets?limit=1", at=each) for each in session.addresses] for _ in range(2))
    for before, after in zip(first, second, strict=True):
        yield from expect_counted(before, after, len(session.addresses), OTHER_GATE)


def same_tags(session: Session) -> Findings:
    """All addresses return the same list with the same `ETag`."""
    first, *others = (session.send("GET /pets?limit=5", at=address) for address in session.addresses)
    for other in others:
        yield from expect(other.body == first.body, f"the same list as from {first.base_url}", other, OTHER_STORE)
        yield from expect(other.value("etag") == first.value("etag"), f"`ETag: {first.value('etag')}`", other)


def same_cursors(session: Session) -> Findings:
    """A cursor from one address is valid at every other address."""
    pages = [session.send("GET /pets?limit=1", at=address) for address in session.addresses]
    queries = [session.next_page(page) for page in pages]
    if not all(queries):
        raise Skip(TOO_FEW)
    expected = session.send(f"GET /pets?{queries[0]}")
    for query, reader in zip(queries, [*session.addresses[1:], session.addresses[0]], strict=True):
        page = session.send(f"GET /pets?{query}", at=reader)
        yield from expect((page.status, page.body) == (200, expected.body), "the next page", page, OTHER_STORE)


def same_time(session: Session) -> Findings:
    """The clocks of all addresses differ by less than two seconds."""
    ahead = dict.fromkeys((address.url for address in session.addresses), Ahead(-math.inf, math.inf))
    for _ in range(SAMPLES):
        for address in session.addresses:
            sample, known = _clock(session, address), ahead[address.url]
            ahead[address.url] = Ahead(max(sample.least, known.least), min(sample.most, known.most))
        time.sleep(1 / SAMPLES)
    fast, slow = max(ahead, key=lambda url: ahead[url].least), min(ahead, key=lambda url: ahead[url].most)
    apart = ahead[fast].least - ahead[slow].most
    if apart >= CLOCKS_MAX:
        cause = f"the clock of {fast} is ahead; synchronise the clocks (NTP)"
        received = f"{fast} is at least {apart:.1f} s ahead of {slow}"
        yield Finding(f"clocks that differ by less than {CLOCKS_MAX} s", received, None, cause)


class Ahead(NamedTuple):
    """How far a clock is ahead of this machine's clock: at least `least` and at most `most` seconds."""

    least: float
    most: float


def _clock(session: Session, address: Address) -> Ahead:
    """Measures how far an address's clock is ahead, using a simulated 429 or, failing that, the `Date` header."""
    response = session.send("GET /pets?limit=1", "Prefer: error=rate_limit_exceeded, retry-after=1", at=address)
    reset = response.number("x-ratelimit-reset")
    if response.status == 429 and reset is not None:
        earliest, latest = reset - 2.0, reset - 1.0
    else:
        earliest, latest = response.date, response.date + 2.0
    return Ahead(earliest - response.received, latest - (response.received - response.seconds))
