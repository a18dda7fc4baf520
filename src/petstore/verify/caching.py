"""Entity tags and caches: clients can revalidate lists, and proxies neither cache nor change responses."""

from petstore.verify.findings import Findings, expect, expect_status, unexpected
from petstore.verify.session import Session

LINE = "GET /pets?limit=3"


def strong_tag(session: Session) -> Findings:
    """A list is sent with a strong `ETag`, which stays the same until the list changes."""
    one, two = session.send(LINE), session.send(LINE)
    for response in (one, two):
        tag = response.value("etag")
        yield from expect(tag.startswith('"') and tag.endswith('"') and len(tag) > 2, "a strong `ETag`", response)
    if one.body == two.body:
        yield from expect(one.value("etag") == two.value("etag"), f"`ETag: {one.value('etag')}`", two)


def not_modified(session: Session) -> Findings:
    """If a list has not changed, a conditional request returns a 304 with the same `ETag` and `Link`, but no body."""
    plain = session.send(LINE)
    tag = plain.value("etag")
    for condition in (tag, f"W/{tag.removeprefix('W/')}", f'"verify", {tag}'):
        response = session.send(LINE, f"If-None-Match: {condition}")
        yield from expect_status(response, 304, "a proxy changed `ETag` or removed `If-None-Match`")
        for name in ("ETag", "Link"):
            same = response.values(name) == plain.values(name)
            yield from expect(same, f"`{name}: {plain.value(name)}`", response, f"a proxy removed or changed `{name}`")


def tag_changes(session: Session) -> Findings:
    """When an animal is added, the `ETag` of the last page changes."""
    before = session.newest()[-1]
    added = session.add(status=session.end_of_list().status)
    yield from expect_status(added, 201)
    after = session.send(before.request, f"If-None-Match: {before.value('etag')}")
    yield from expect_status(after, 200)


def not_cached(session: Session) -> Findings:
    """Every response comes from the service itself, not from a cache."""
    one, two = session.send(LINE), session.send(LINE)
    if one.value("x-request-id") and one.value("x-request-id") == two.value("x-request-id"):
        yield unexpected("a response with a new `X-Request-Id`", two, "a cache answered")
    yield from expect(not two.values("age"), "no `Age`", two)


def not_compressed(session: Session) -> Findings:
    """Responses are not compressed, because an `ETag` identifies the exact bytes that the service sent."""
    response = session.send(LINE, "Accept-Encoding: gzip, deflate, br, zstd")
    yield from expect(not response.values("content-encoding"), "no `Content-Encoding`", response)
    yield from expect(response.json is not None, "plain JSON", response)
