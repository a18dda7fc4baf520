"""Iterates over a list, page by page or animal by animal. No I/O."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import msgspec

from petstore_client._models import Page, Pet
from petstore_client._responses import RawResponse

FetchPage = Callable[[int, str | None], Awaitable[RawResponse[Page]]]
"""Fetches a page, given its limit and a cursor."""


def limit_of(page_size: int, max_items: int | None) -> int:
    """Returns the `limit` parameter for the next page."""
    return page_size if max_items is None else min(page_size, max_items)


class AsyncPageIterator(AsyncIterator[Page]):
    """Iterates over pages of animals. Tasks must not share an iterator."""

    def __init__(self, fetch: FetchPage, path: str, max_items: int | None, page_size: int, cursor: str | None) -> None:
        """`path` is the list's path and query without a cursor. It is used only in the repr."""
        self._fetch = fetch
        self._path = path
        self._remaining = max_items
        self._page_size = page_size
        self._cursor: str | None = cursor
        self._earlier_cursor: str | None = cursor
        self._pages = 0
        self._is_done = max_items == 0

    async def __anext__(self) -> Page:
        if self._is_done:
            raise StopAsyncIteration
        response = await self._fetch(limit_of(self._page_size, self._remaining), self._cursor)
        page = response.parse()
        if page.next_cursor is not None and page.next_cursor in (self._cursor, self._earlier_cursor):
            raise response.unexpected("the list does not advance: the service has already returned this cursor")
        # Update the state only on success, so that the next call after an error fetches the same page again.
        self._cursor, self._is_done = page.next_cursor, page.next_cursor is None
        self._pages += 1
        if self._pages & (self._pages - 1) == 0:  # a power of two, so that a cycle of any length is found
            self._earlier_cursor = page.next_cursor
        if self._remaining is not None:
            if len(page) > self._remaining:  # the service ignored the limit
                page = msgspec.structs.replace(page, pets=page.pets[: self._remaining])
            self._remaining -= len(page)
            self._is_done = self._is_done or self._remaining == 0
        return page

    def __repr__(self) -> str:
        start = "the first page" if self._cursor is None else f"cursor {self._cursor!r}"
        return f"<{type(self).__name__} {self._path}, {'at the end' if self._is_done else 'next: ' + start}>"


class AsyncPetIterator(AsyncIterator[Pet]):
    """Iterates over the animals on all pages. Tasks must not share an iterator."""

    def __init__(self, fetch: FetchPage, path: str, max_items: int | None, page_size: int, cursor: str | None) -> None:
        self._path = path
        self._new_pages = partial(AsyncPageIterator, fetch, path, max_items, page_size, cursor)
        self._pages = self.pages()
        self._page: Iterator[Pet] = iter(())

    def pages(self) -> AsyncPageIterator:
        """Returns a new iterator that yields the same animals in pages, or one empty page if there are no animals."""
        return self._new_pages()

    async def __anext__(self) -> Pet:
        while True:
            for pet in self._page:
                return pet
            self._page = iter(await anext(self._pages))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}>"
