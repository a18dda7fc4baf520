"""The page cache: pages and animals as they were rendered, each usable only under the catalogue's present version."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from petstore.web.replies import Lines
from petstore.web.requests import ListQuery

CACHE_BYTES = 24 * 1024 * 1024
OVERHEAD = 1024  # bytes per entry beside its body: headers, and what it takes to find it
FRESH_SECONDS = 1.0

Name = ListQuery | int  # of a page, or of one animal


class Rendered(msgspec.Struct, frozen=True, gc=False):
    """A reply that can be sent again. Lists have an entity tag."""

    headers: Lines
    body: bytes
    etag: str = ""


class PageCache:
    """`version` is always the catalogue's, from the gate's step for this very request."""

    def __init__(self, stamp: Callable[[], Awaitable[object]], *, bytes_max: int = CACHE_BYTES) -> None:
        """`stamp` returns a value that differs from an earlier one when the catalogue has changed in between."""
        self._read_stamp = stamp
        self._bytes_max = bytes_max
        self._entries: dict[Name, Rendered] = {}
        self._bytes = 0
        self._misses = 0
        self._version = -1
        self._stamp: object = None
        self._checked = self._fresh_until = 0.0  # a clock that is set back makes the cache old, not young
        self._reads: dict[Name, asyncio.Task[Rendered]] = {}

    def get(self, name: Name, version: int, now: float) -> Rendered | None:
        if version == self._version and self._checked <= now < self._fresh_until:
            return self._entries.get(name)
        return None

    async def refresh(self, version: int, now: float) -> object:
        """To be called before a read that follows a miss. Returns the token to put what was read with.

        Once a second the store itself is asked: a process can die between its commit and the new version in the gate.
        """
        if version != self._version:
            self._version = version
            self._clear()
        if not self._checked <= now < self._fresh_until:
            self._checked, self._fresh_until = now, now + FRESH_SECONDS  # one request asks, the others go on
            try:
                stamp = await self._read_stamp()
            except BaseException:
                self._fresh_until = 0.0
                raise
            if stamp != self._stamp:
                self._clear()
                self._stamp = stamp
        return self._entries

    def put(self, name: Name, rendered: Rendered, token: object) -> None:
        """Keep what was read, unless the catalogue has changed since `refresh` returned the token."""
        self._misses += 1
        if token is self._entries:
            size = len(rendered.body) + OVERHEAD
            if self._bytes + size > self._bytes_max:
                self._clear()
            self._bytes += size
            self._entries[name] = rendered

    async def share(self, name: Name, read: Callable[[], Coroutine[Any, Any, Rendered]]) -> Rendered:
        """Read once for all requests that want the same at the same time: a new version of a popular page, say."""
        reading = self._reads.get(name)
        if reading is None:
            reads = self._reads
            reading = reads[name] = asyncio.get_running_loop().create_task(read())
            reading.add_done_callback(lambda done: (reads.pop(name), done.cancelled() or done.exception()))
        return await asyncio.shield(reading)

    def take_misses(self) -> int:
        """How many reads were not answered from the cache, since the last call."""
        misses, self._misses = self._misses, 0
        return misses

    def _clear(self) -> None:
        self._entries = {}
        self._bytes = 0
        self._reads = {}
        self._stamp = None
