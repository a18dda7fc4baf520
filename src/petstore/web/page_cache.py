"""The page cache, which stores rendered pages of lists for the current version of the catalogue.

A new animal has the highest id, so it can change only the last page of a list. When an animal is added, the cache
therefore drops only last pages. All other pages stay valid until an animal is edited. store/freshness.py explains
catalogue versions.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from petstore.gate import CatalogueVersion
from petstore.store.freshness import KEPT_SECONDS
from petstore.web.replies import Lines
from petstore.web.requests import ListQuery

CACHE_BYTES = 24 * 1024 * 1024
OVERHEAD = 1024  # estimated size of an entry in bytes, excluding its body


class Rendered(msgspec.Struct, frozen=True, gc=False):
    """A rendered page, which can be sent to any number of clients."""

    headers: Lines
    body: bytes
    etag: str
    ends_list: bool = False  # whether this is the last page of a list


Entries = dict[ListQuery, Rendered]


class PageCache:
    """Caches rendered pages.

    In every method, `version` is the catalogue version that the gate returned when it admitted the request, before the
    store was read.
    """

    def __init__(self, *, bytes_max: int = CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._version: CatalogueVersion = (-1, -1)
        self._begun = self._until = 0.0  # when the cache was last emptied, and when it must be emptied again
        self._entries: Entries = {}
        self._ends: Entries = {}  # last pages
        self._bytes = 0  # the total size of `_entries` and `_ends`
        self._misses = 0
        self._reads: dict[ListQuery, asyncio.Task[Rendered]] = {}

    def get(self, query: ListQuery, version: CatalogueVersion, now: float) -> Rendered | None:
        if version != self._version or not self._begun <= now < self._until:
            self._turn_to(version, now)
        return self._entries.get(query) or self._ends.get(query)

    def _turn_to(self, version: CatalogueVersion, now: float) -> None:
        """Switches to this version, and removes pages that are not valid for it.

        The version can be older than the cache's if a request was admitted before the last change.
        """
        _, edited = version
        if edited != self._version[1] or not self._begun <= now < self._until:
            self._begun, self._until = now, now + KEPT_SECONDS
            self._clear()
        else:
            self._bytes -= sum(_size(rendered) for rendered in self._ends.values())
            self._ends, self._reads = {}, {}
        self._version = version

    def put(self, query: ListQuery, rendered: Rendered, version: CatalogueVersion) -> None:
        """Stores a page that was read at this version, unless the cache has since switched to another version."""
        self._misses += 1
        if version != self._version:
            return
        held = self._ends if rendered.ends_list else self._entries
        replaced = held.get(query)  # several requests may store the result of the same read
        self._bytes += _size(rendered) - (_size(replaced) if replaced else 0)
        held[query] = rendered
        if self._bytes > self._bytes_max:
            self._clear()

    async def share(self, query: ListQuery, read: Callable[[], Coroutine[Any, Any, Rendered]]) -> Rendered:
        """Reads a page once for all concurrent requests with the same query and version.

        Must be called right after `get`.
        """
        reading = self._reads.get(query)
        if reading is None:
            reads = self._reads
            reading = reads[query] = asyncio.get_running_loop().create_task(read())
            reading.add_done_callback(lambda done: (reads.pop(query), done.cancelled() or done.exception()))
        return await asyncio.shield(reading)

    def take_misses(self) -> int:
        """Returns the number of cache misses since the last call."""
        misses, self._misses = self._misses, 0
        return misses

    def _clear(self) -> None:
        self._entries, self._ends, self._reads = {}, {}, {}
        self._bytes = 0


def _size(rendered: Rendered) -> int:
    return len(rendered.body) + OVERHEAD
