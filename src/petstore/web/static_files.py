"""Documents that never change while the service runs: made and compressed once, and cached by clients."""

import asyncio
import gzip
import hashlib
from collections.abc import Callable
from typing import NamedTuple

from petstore.web.replies import Lines, Reply, line
from petstore.web.requests import FIELD_PARSED_MAX, Request, etag_matches

REVALIDATE = "no-cache"  # keep it, and ask before each use whether it is still the same
IMMUTABLE = "public, max-age=31536000, immutable"  # for an address that has the version of its content in it
# A page takes everything from this server.
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
        """`content` is called once, when the file is first asked for."""
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
        # In a thread, and once for all who ask meanwhile: to compress the largest file takes 0.1 s.
        if self._content is None:
            self._content = asyncio.ensure_future(asyncio.to_thread(_made, self._make))
        try:
            content = await asyncio.shield(self._content)
        except Exception:
            self._content = None  # too many open files, say: the next request tries again
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
    """How much `Accept` or `Accept-Encoding` wants the first of `names` that it mentions, from 0 to 1."""
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
