"""Iteration over a list, page by page and animal by animal. No I/O."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import msgspec

from petstore_client._models import Page, Pet
from petstore_client._responses import RawResponse

FetchPage = Callable[[int, str | None, Page | str | None], Awaitable[RawResponse[Page]]]
"""Fetches a page, given its limit, a cursor, and a page or ETag for `If-None-Match`."""


def limit_of(page_size: int, max_items: int | None) -> int:
    """The most animals that the next page may have."""
    return page_size if max_items is None else min(page_size, max_items)


class AsyncPageIterator(AsyncIterator[Page]):
    """Pages of animals. For one task."""

    def __init__(
        self,
        fetch: FetchPage,
        path: str,
        max_items: int | None,
        page_size: int,
        cursor: str | None,
        if_none_match: Page | str | None,
    ) -> None:
        """`path` is for the repr: the path of the list, with its query but without a cursor."""
        self._fetch = fetch
        self._path = path
        self._remaining = max_items
        self._page_size = page_size
        self._cursor = cursor
        self._if_none_match = if_none_match
        self._is_done = max_items == 0

    async def __anext__(self) -> Page:
        if self._is_done:
            raise StopAsyncIteration
        limit = limit_of(self._page_size, self._remaining)
        page = (await self._fetch(limit, self._cursor, self._if_none_match)).parse()
        # Only now: after an error, the next call fetches the same page again.
        self._cursor, self._if_none_match, self._is_done = page.next_cursor, None, page.next_cursor is None
        if self._remaining is not None:
            if len(page) > self._remaining:  # the service ignored the limit
                page = msgspec.structs.replace(page, pets=page.pets[: self._remaining])
            # A page that is not modified has no animals if only its ETag was given. Unless it is the last, it is full.
            self._remaining -= limit if page.not_modified and not page.pets else len(page)
            self._is_done = self._is_done or self._remaining == 0
        return page

    def __repr__(self) -> str:
        start = "the first page" if self._cursor is None else f"cursor {self._cursor!r}"
        return f"<{type(self).__name__} {self._path}, {'at the end' if self._is_done else 'next: ' + start}>"


class AsyncPetIterator(AsyncIterator[Pet]):
    """Animals one by one, over all pages. For one task."""

    def __init__(
        self,
        fetch: FetchPage,
        path: str,
        max_items: int | None,
        page_size: int,
        cursor: str | None,
        if_none_match: Page | str | None,
    ) -> None:
        self._path = path
        self._new_pages = partial(AsyncPageIterator, fetch, path, max_items, page_size, cursor, if_none_match)
        self._pages = self.pages()
        self._page: Iterator[Pet] = iter(())

    def pages(self) -> AsyncPageIterator:
        """The same animals in pages, from the first page on. An empty list is one empty page."""
        return self._new_pages()

    async def __anext__(self) -> Pet:
        while True:
            for pet in self._page:
                return pet
            self._page = iter(await anext(self._pages))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}>"
