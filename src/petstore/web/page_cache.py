"""The page cache: rendered pages of the list, each used only while the store would still return the same.

A new animal has the highest id, so it can change only the pages that end a list. All other entries stay usable until an
operator changes something. Without this rule every create would empty the cache.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from petstore.web.replies import Lines
from petstore.web.requests import ListQuery

CACHE_BYTES = 24 * 1024 * 1024
OVERHEAD = 1024  # bytes per entry beside its body: headers, and what it takes to find it
FRESH_SECONDS = 1.0

Entries = dict[ListQuery, "Rendered"]


class Rendered(msgspec.Struct, frozen=True, gc=False):
    """A reply that can be sent again."""

    headers: Lines
    body: bytes
    etag: str
    ends_list: bool = False  # a page without a successor


class PageCache:
    """`version` is always the catalogue's, from the gate's step for this request."""

    def __init__(self, latest_change: Callable[[], Awaitable[int]], *, bytes_max: int = CACHE_BYTES) -> None:
        """`latest_change` asks the store for the number of the catalogue's latest change by an operator."""
        self._read_change = latest_change
        self._bytes_max = bytes_max
        self._entries: Entries = {}
        self._ends: Entries = {}  # entries that end a list
        self._unchecked: Entries = {}  # entries, while the store is asked for its latest change
        self._bytes = 0  # of all three
        self._change = -1  # the latest change of the catalogue when `_entries` was begun
        self._misses = 0
        self._version: object = None
        self._checked = self._fresh_until = 0.0  # if the clock is set back, the cache counts as stale
        self._reads: dict[ListQuery, asyncio.Task[Rendered]] = {}

    def get(self, query: ListQuery, version: object, now: float) -> Rendered | None:
        if version == self._version and self._checked <= now < self._fresh_until:
            return self._entries.get(query) or self._ends.get(query)
        return None

    async def refresh(self, version: object, now: float) -> tuple[Entries, Entries]:
        """To be called before a read that follows a miss. Returns the token to put what was read with.

        The store is asked for its latest change under each new version, and once a second: a process can die between
        its commit and the new version in the gate. One request asks; the others go on, and read what they need.
        """
        if version != self._version or not self._checked <= now < self._fresh_until:
            self._version, self._checked, self._fresh_until = version, now, now + FRESH_SECONDS
            self._set_aside()
            asked_with = self._entries
            try:
                change = await self._read_change()
            except BaseException:
                self._fresh_until = 0.0
                raise
            if asked_with is self._entries:  # otherwise a later request has begun to ask
                self._keep_unchanged(change)
        return self._entries, self._ends

    def _set_aside(self) -> None:
        """Keep no page that ends a list, and the other entries for `_keep_unchanged`."""
        dropped = self._ends
        if self._unchecked:  # an earlier request has not got its answer
            dropped = dropped | self._entries
        else:
            self._unchecked = self._entries
        self._bytes -= sum(_size(rendered) for rendered in dropped.values())
        self._entries, self._ends, self._reads = {}, {}, {}

    def _keep_unchanged(self, change: int) -> None:
        if change == self._change:
            for query, rendered in self._entries.items():
                self._keep(query, rendered, self._unchecked)
                self._bytes -= _size(rendered)  # it was counted when it was put
            self._entries, self._unchecked = self._unchecked, {}
        else:
            self._clear()
            self._change = change

    def put(self, query: ListQuery, rendered: Rendered, token: tuple[Entries, Entries]) -> None:
        """Keep what was read, unless it may have changed since `refresh` returned the token."""
        self._misses += 1
        held = token[1] if rendered.ends_list else token[0]
        if held is self._entries or held is self._ends:
            self._keep(query, rendered, held)
            if self._bytes > self._bytes_max:
                self._clear()

    def _keep(self, query: ListQuery, rendered: Rendered, held: Entries) -> None:
        replaced = held.get(query)  # requests that share a read all put it
        self._bytes += _size(rendered) - (_size(replaced) if replaced else 0)
        held[query] = rendered

    async def share(self, query: ListQuery, read: Callable[[], Coroutine[Any, Any, Rendered]]) -> Rendered:
        """Read once for all requests that want the same at the same time: a new version of a popular page, say."""
        reading = self._reads.get(query)
        if reading is None:
            reads = self._reads
            reading = reads[query] = asyncio.get_running_loop().create_task(read())
            reading.add_done_callback(lambda done: (reads.pop(query), done.cancelled() or done.exception()))
        return await asyncio.shield(reading)

    def take_misses(self) -> int:
        """How many reads were not answered from the cache, since the last call."""
        misses, self._misses = self._misses, 0
        return misses

    def _clear(self) -> None:
        self._entries, self._ends, self._unchecked, self._reads = {}, {}, {}, {}
        self._bytes = 0


def _size(rendered: Rendered) -> int:
    return len(rendered.body) + OVERHEAD
