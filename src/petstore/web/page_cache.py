"""What a worker remembers of the catalogue: pages and animals as they were rendered, of one version, and no longer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from petstore.pets import Catalogue
from petstore.web.replies import Lines
from petstore.web.requests import ListQuery

REMEMBERED_BYTES = 24 * 1024 * 1024
ABOUT_A_PAGE = 1024  # bytes: its headers, and what it takes to find it
FRESH_SECONDS = 1.0

Name = ListQuery | int  # of a page, or of one animal


class Rendered(msgspec.Struct, frozen=True, gc=False):
    """A reply that is remembered. Lists have an entity tag."""

    headers: Lines
    body: bytes
    etag: str = ""


class PageCache:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._remembered: dict[Name, Rendered] = {}
        self._remembered_bytes = 0
        self._misses = 0
        self._version = -1
        self._stamp: object = None
        self._being_read: dict[Name, asyncio.Future[Rendered]] = {}
        self._asked = self._fresh_until = 0.0  # between them the store need not be asked; a clock may be set back

    def find(self, name: Name, version: int, now: float) -> Rendered | None:
        """What is remembered under this name, if it still holds. `version` is the catalogue's, from the gate."""
        if version == self._version and self._asked <= now < self._fresh_until:
            return self._remembered.get(name)
        return None

    async def read(
        self, name: Name, version: int, now: float, render: Callable[[], Coroutine[Any, Any, Rendered]]
    ) -> Rendered:
        """What was not found: from the store, and remembered unless something has changed meanwhile."""
        await self._refresh(version, now)
        remembered = self._remembered
        known = remembered.get(name)
        if known is not None:
            return known
        rendered = await (render() if self._catalogue.immediate else self._shared(name, render))
        self._misses += 1  # not of what is not there, or cannot be read: that will not be a page
        if remembered is self._remembered:
            size = len(rendered.body) + ABOUT_A_PAGE
            if self._remembered_bytes + size > REMEMBERED_BYTES:
                self._forget()
            self._remembered_bytes += size
            self._remembered[name] = rendered
        return rendered

    def take_misses(self) -> int:
        """How many pages and animals were not at hand, since the last time."""
        misses, self._misses = self._misses, 0
        return misses

    async def _refresh(self, version: int, now: float) -> None:
        """Forget what is no longer true.

        Once a second the store itself is asked as well: a process may have died between a commit and the new version.
        """
        if version != self._version:
            self._version = version
            self._forget()
        if not self._asked <= now < self._fresh_until:
            self._asked, self._fresh_until = now, now + FRESH_SECONDS  # one request asks, the others go on
            try:
                stamp = await self._catalogue.stamp()
            except BaseException:
                self._fresh_until = 0.0
                raise
            if stamp != self._stamp:
                self._forget()
                self._stamp = stamp

    async def _shared(self, name: Name, render: Callable[[], Coroutine[Any, Any, Rendered]]) -> Rendered:
        """Where a read takes its time, those who want the same at the same time share it: a new version of a page that
        a thousand clients ask for is read once.
        """
        being_read = self._being_read
        reading = being_read.get(name)
        if reading is None:
            reading = being_read[name] = asyncio.ensure_future(render())
            reading.add_done_callback(lambda done: (being_read.pop(name), done.exception()))
        return await asyncio.shield(reading)

    def _forget(self) -> None:
        self._remembered = {}
        self._remembered_bytes = 0
        self._being_read = {}
        self._stamp = None
