"""Paths match exactly, and proxies do not rewrite them."""

from petstore.verify.findings import Findings, expect_error
from petstore.verify.session import Session


def _expect_nothing(session: Session, path: str, cause: str) -> Findings:
    yield from expect_error(session.send(f"GET {path}"), 404, "not_found", cause)


def unknown(session: Session) -> Findings:
    """An unknown path under the base address is rejected with 404 `not_found`."""
    yield from _expect_nothing(session, "/verify", "")


def slashes(session: Session) -> Findings:
    """A path with a trailing or double slash is rejected with 404 `not_found`."""
    for path in ("/pets/", "//pets", "/pets//1"):
        yield from _expect_nothing(session, path, "a proxy merges or removes slashes")


def dot_segments(session: Session) -> Findings:
    """A path with dot segments is rejected with 404 `not_found`."""
    for path in ("/./pets", "/verify/../pets", "/verify/%2e%2e/pets"):
        yield from _expect_nothing(session, path, "a proxy resolves dot segments")


def encoded_slash(session: Session) -> Findings:
    """An encoded slash does not separate path segments, so `/pets%2F1` is rejected with 404 `not_found`."""
    for path in ("/pets%2F1", "/pets%2f1"):
        yield from _expect_nothing(session, path, "a proxy decodes `%2F`")
