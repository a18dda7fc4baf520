"""Documents that never change while the service runs: compressed once, and cached by clients."""

import asyncio
import gzip
import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property

from petstore.web.replies import Lines, Reply, line
from petstore.web.requests import Request, etag_matches

REVALIDATE = "no-cache"  # keep it, and ask before each use whether it is still the same
IMMUTABLE = "public, max-age=31536000, immutable"  # for an address that has the version of its content in it
# A page takes everything from this server. Only stylesheets carry images within them.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class StaticFile:
    def __init__(
        self, media_type: str, content: Callable[[], bytes], *, cache: str = REVALIDATE, vary: str = "Accept-Encoding"
    ) -> None:
        """`content` is called when the file is first asked for."""
        self._media_type = media_type
        self._content = content
        self._headers: Lines = (
            line("cache-control", cache)
            + line("vary", vary)
            + line("content-security-policy", POLICY)
            + line("x-content-type-options", "nosniff")
        )
        self._compressing: asyncio.Future[bytes] | None = None

    async def answer(self, request: Request) -> Reply:
        compressed = quality(request.headers("accept-encoding"), "gzip", "*") > 0
        etag = f'"{self._digest}-gzip"' if compressed else f'"{self._digest}"'
        headers = line("etag", etag) + self._headers
        if etag_matches(request.headers("if-none-match"), etag):
            return Reply(304, headers)
        headers += line("content-type", self._media_type)
        if not compressed:
            return Reply(200, headers, self._body)
        return Reply(200, headers + line("content-encoding", "gzip"), await self._compressed())

    @cached_property
    def _body(self) -> bytes:
        return self._content()

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self._body).hexdigest()[:32]

    async def _compressed(self) -> bytes:
        """In a thread, and once for all who ask meanwhile: the largest file would hold up the worker for 0.1 s."""
        if self._compressing is None:
            work = asyncio.to_thread(gzip.compress, self._body, 9, mtime=0)
            self._compressing = asyncio.ensure_future(work)
        return await asyncio.shield(self._compressing)


def quality(fields: Sequence[str], *names: str) -> float:
    """How much `Accept` or `Accept-Encoding` wants the first of `names` that it mentions, from 0 to 1."""
    wanted: dict[str, float] = {}
    for entry in ",".join(fields).lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            wanted[name] = float(weight)
        except ValueError:
            wanted[name] = 0.0
    return next((wanted[name] for name in names if name in wanted), 0.0)
