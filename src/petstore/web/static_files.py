"""Files that do not change while the service runs. Each file is generated and compressed only once."""

import asyncio
import gzip
import hashlib
from collections.abc import Callable
from typing import NamedTuple

from petstore.web.replies import Lines, Reply, line
from petstore.web.requests import FIELD_PARSED_MAX, Request, etag_matches

REVALIDATE = "no-cache"  # clients may store the file, but must revalidate it before each use
IMMUTABLE = "public, max-age=31536000, immutable"  # for URLs that contain a version
# Pages may load resources only from this server.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Content(NamedTuple):
    plain: bytes
    compressed: bytes
    digest: str


class StaticFile:
    def __init__(
        self, media_type: str, content: Callable[[], bytes], *, cache: str = REVALIDATE, vary: str = "Accept-Encoding"
    ) -> None:
        """`content` is called once, when the file is first requested."""
        self._media_type = media_type
        self._make = content
        self._headers: Lines = (
            line("cache-control", cache)
            + line("vary", vary)
            + line("content-security-policy", POLICY)
            + line("x-content-type-options", "nosniff")
        )
        self._content: asyncio.Future[Content] | None = None

    async def answer(self, request: Request) -> Reply:
        # Compressing the largest file takes 0.1 s, so it is done in a thread, once for all concurrent requests.
        if self._content is None:
            self._content = asyncio.ensure_future(asyncio.to_thread(_made, self._make))
        try:
            content = await asyncio.shield(self._content)
        except Exception:
            self._content = None  # for example, too many files are open; the next request tries again
            raise
        compressed = quality(request.fields.get("accept-encoding", ""), "gzip", "*") > 0
        etag = f'"{content.digest}-gzip"' if compressed else f'"{content.digest}"'
        headers = line("etag", etag) + self._headers
        if etag_matches(request.fields.get("if-none-match", ""), etag):
            return Reply(304, headers)
        headers += line("content-type", self._media_type)
        if compressed:
            return Reply(200, headers + line("content-encoding", "gzip"), content.compressed)
        return Reply(200, headers, content.plain)


def _made(make: Callable[[], bytes]) -> Content:
    plain = make()
    return Content(plain, gzip.compress(plain, 9, mtime=0), hashlib.sha256(plain).hexdigest()[:32])


def quality(field: str, *names: str) -> float:
    """Returns the quality value that an `Accept` or `Accept-Encoding` field gives to a media type or a coding.

    Looks for the names in this order, so the most specific one should come first. Returns 0 if none is found.
    """
    if len(field) > FIELD_PARSED_MAX:
        return 0.0
    wanted: dict[str, float] = {}
    for entry in field.lower().split(","):
        name, _, parameters = entry.partition(";")
        name = name.strip()
        if name in names:
            wanted[name] = _weight(parameters)
    return next((wanted[name] for name in names if name in wanted), 0.0)


def _weight(parameters: str) -> float:
    stripped = (each.strip() for each in parameters.split(";"))
    try:
        return float(next((each[2:] for each in stripped if each.startswith("q=")), "1"))
    except ValueError:
        return 0.0
