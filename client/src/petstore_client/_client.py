"""`Petstore`, the client for threads: it runs the coroutines of the core with a sender that blocks."""

import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from typing_extensions import deprecated

from petstore_client._base_client import BaseClient, endpoint
from petstore_client._events import Attempt, Events, Wait
from petstore_client._models import Page, Pet, Status
from petstore_client._operations import PAGE_SIZE, Operations
from petstore_client._pages import AsyncPetIterator
from petstore_client._responses import RawResponse

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class Petstore(BaseClient):
    """A client of the pet store. Share one among all threads, so that they share its pause after a 429.

    Every call waits and retries as the service asks, and raises a `PetstoreError` if that does not help.

    Args:
        api_key: The API key; without it, the variable `PETSTORE_API_KEY`.
        base_url: Where the service is; without it, the variable `PETSTORE_BASE_URL`, or else `LIVE`.
        max_retries: How often a request is sent again after a connection error, a timeout, 408, 429 or 5xx.
        timeout: The most seconds that one attempt may take; if the head of the response arrives byte by byte, that
            each byte may take. An `httpx.Timeout` is for each phase instead, connecting included; None is no timeout.
        total_timeout: The most seconds that a call may take, including its waits and retries. For `list_pets`, it
            applies to each page. If the next wait would exceed it, the call raises the last error immediately. None is
            no limit.
        connect_timeout: The most seconds that connecting may take; None is no timeout.
        default_headers: Headers to send with every request.
        strict: Send `Prefer: handling=strict`, so that the service refuses unknown parameters and members.
        http_client: An `httpx.Client` to send with. It is not closed with this client; its timeouts and its `auth`
            are not used.
        transport: An `httpx` transport, instead of a whole client.
        on_attempt: Called with an `Attempt` after each request that was sent.
        on_wait: Called with a `Wait` before each wait.
        clock, sleep, random: Replacements for `time.monotonic`, `time.sleep` and `random.random`, for tests.

    Raises:
        ValueError: There is no API key, the base URL is not valid, or an argument is out of range.
    """

    def __init__(
        self,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        max_retries: int = 2,
        timeout: "float | httpx.Timeout | None" = 30.0,
        total_timeout: float | None = 120.0,
        connect_timeout: float | None = 5.0,
        default_headers: Mapping[str, str] | None = None,
        strict: bool = False,
        http_client: "httpx.Client | None" = None,
        transport: "httpx.BaseTransport | None" = None,
        on_attempt: Callable[[Attempt], object] | None = None,
        on_wait: Callable[[Wait], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        from petstore_client._http import SyncSender

        target = endpoint(api_key, base_url)
        self._sender: SyncSender = SyncSender(target, http_client, transport, sleep)
        super().__init__(
            self._sender,
            target.base_url,
            Events(on_attempt, on_wait),
            clock,
            random,
            max_retries=max_retries,
            timeout=timeout,
            connect_timeout=connect_timeout,
            total_timeout=total_timeout,
            headers=default_headers,
            strict=strict,
        )

    @property
    def with_raw_response(self) -> "PetstoreWithRawResponse":
        """The same operations; each returns a `RawResponse`, with the status and the headers."""
        return PetstoreWithRawResponse(self._operations)

    def list_pets(
        self,
        status: Status | None = None,
        *,
        max_items: int | None = None,
        page_size: int = PAGE_SIZE,
        cursor: str | None = None,
        if_none_match: Page | str | None = None,
    ) -> "PetIterator":
        """Iterates over animals in the order of their ids. Each page is requested when the iteration reaches it.

        Args:
            status: Only animals with this status.
            max_items: The most animals to return; None returns all. No page is requested that is not needed.
            page_size: The most animals per request, 1 to 100.
            cursor: Where to start: the `next_cursor` of a page. Without it, at the first animal.
            if_none_match: A page of an earlier call, or its `etag`. If the first page has not changed, the service
                does not send it again: the first page is then the given one, with `not_modified` set. For an `etag`
                alone it has no animals; the iteration goes on with the next page.

        Raises:
            PetstoreError: While iterating. Continuing the iteration requests the same page again.
            ValueError: `max_items` is negative, or `if_none_match` is an `etag` that no header can carry.
        """
        return PetIterator(self._operations.iterate(status, max_items, page_size, cursor, if_none_match))

    def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> Pet:
        """Add an animal, exactly once however often the request is sent.

        Args:
            name: 1 to 255 characters, not only white space, no control characters.
            category_id: The category that the animal belongs to.
            status: Without it the animal is available.
            idempotency_key: Two calls with the same key add one animal, for 24 hours. By default each call has a new
                random key. Pass your own to be able to repeat a call after your program has ended.

        Raises:
            PetstoreError: `InvalidRequest` if the service refuses the values, or any other.
            ValueError: The idempotency key is not 1 to 255 visible ASCII characters, or the name is not valid Unicode.
        """
        call = self._operations.create_pet(name, category_id, status=status, idempotency_key=idempotency_key)
        return _run(call).parse()

    @deprecated("get_pet ends on 5 December 2030; use list_pets with a status instead")
    def get_pet(self, pet_id: int) -> Pet:
        """One animal. Deprecated: ends on 5 December 2030; use `list_pets` with a status instead.

        Raises:
            PetstoreError: `PetNotFound` if there is no such animal, or any other.
        """
        return _run(self._operations.fetch_pet(pet_id)).parse()

    def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PetstoreWithRawResponse:
    """The operations of `Petstore`; each returns a `RawResponse`."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def list_pets(
        self,
        status: Status | None = None,
        *,
        max_items: int | None = None,
        page_size: int = PAGE_SIZE,
        cursor: str | None = None,
        if_none_match: Page | str | None = None,
    ) -> RawResponse[Page]:
        """Requests one page, of at most `max_items` animals. Its arguments are those of `Petstore.list_pets`.

        Raises the same errors, and ValueError for a `max_items` of 0, because a raw response needs a request.
        """
        call = self._operations.list_pets(
            status, max_items=max_items, page_size=page_size, cursor=cursor, if_none_match=if_none_match
        )
        return _run(call)

    def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> RawResponse[Pet]:
        """As `Petstore.create_pet`, and it raises the same."""
        call = self._operations.create_pet(name, category_id, status=status, idempotency_key=idempotency_key)
        return _run(call)

    @deprecated("get_pet ends on 5 December 2030; use list_pets with a status instead")
    def get_pet(self, pet_id: int) -> RawResponse[Pet]:
        """As `Petstore.get_pet`, and deprecated as well."""
        return _run(self._operations.fetch_pet(pet_id))


class _BlockingIterator(Iterator[T], Generic[T]):
    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items

    def __next__(self) -> T:
        try:
            return _run(_next(self._items))
        except StopAsyncIteration:
            raise StopIteration from None

    def __repr__(self) -> str:
        return repr(self._items).replace("<Async", "<", 1)


class PageIterator(_BlockingIterator[Page]):
    """Pages of animals. For one thread."""


class PetIterator(_BlockingIterator[Pet]):
    """Animals one by one, over all pages. For one thread."""

    def __init__(self, pets: AsyncPetIterator) -> None:
        super().__init__(pets)
        self._pets = pets

    def pages(self) -> PageIterator:
        """The same animals in pages, from the first page on. An empty list is one empty page."""
        return PageIterator(self._pets.pages())


def _run(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends, because its sender blocks. Raises what the coroutine raises."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("the sender of a sync client must block")


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
