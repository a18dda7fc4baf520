"""`Petstore`, the synchronous client. It runs the coroutines in `_operations.py` with a blocking sender."""

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
    import httpx2

T = TypeVar("T")


class Petstore(BaseClient):
    """A client for the pet store. Share one client among all threads, so that they all pause after a 429.

    Every call honours `Retry-After` and retries failed requests. It raises a `PetstoreError` if the last attempt fails.

    Args:
        api_key: The API key. Defaults to the environment variable `PETSTORE_API_KEY`.
        base_url: The base URL of the service. Defaults to the environment variable `PETSTORE_BASE_URL`, then to `LIVE`.
        max_retries: The maximum number of retries after a connection error, a timeout, or a status of 408, 429 or 5xx.
        timeout: The maximum number of seconds for one attempt. While the response headers arrive, the timeout applies
            to each read, not to the whole attempt. An `httpx2.Timeout` sets a separate timeout for each phase and
            overrides `connect_timeout`. None means no timeout.
        total_timeout: The maximum number of seconds for a call, including waits and retries. For `list_pets`, it
            applies to each page. If the next wait would exceed it, the call raises the last error immediately. None
            means no timeout.
        connect_timeout: The maximum number of seconds for opening a connection. None means no timeout.
        default_headers: Headers to send with every request.
        strict: Whether to send `Prefer: handling=strict`, so that the service rejects unknown parameters and members.
        http_client: The `httpx2.Client` to use. It stays open when the `Petstore` client is closed. Its timeouts and
            `auth` are ignored.
        transport: An `httpx2` transport. Cannot be combined with `http_client`.
        on_attempt: Called with an `Attempt` after each request.
        on_wait: Called with a `Wait` before each wait. A wait longer than 5 s is also logged as a warning.
        clock, sleep, random: Replacements for `time.monotonic`, `time.sleep` and `random.random` in tests.

    Raises:
        ValueError: The API key is missing, the base URL is not valid, or an argument is out of range.
    """

    def __init__(
        self,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        max_retries: int = 2,
        timeout: "float | httpx2.Timeout | None" = 30.0,
        total_timeout: float | None = 120.0,
        connect_timeout: float | None = 5.0,
        default_headers: Mapping[str, str] | None = None,
        strict: bool = False,
        http_client: "httpx2.Client | None" = None,
        transport: "httpx2.BaseTransport | None" = None,
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
        """This client's operations, each of which returns a `RawResponse` instead of the parsed value."""
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
        """Iterates over animals ordered by id, fetching pages as needed.

        Args:
            status: Return only animals with this status.
            max_items: The maximum number of animals to return. None means no limit.
            page_size: The maximum number of animals per request, from 1 to 100. Defaults to 100.
            cursor: The `next_cursor` of an earlier page, to continue after that page. By default, the iteration starts
                at the first animal.
            if_none_match: A page from an earlier call, or its `etag`. If the first page has not changed, the service
                does not send it again. The iterator then uses the page that you passed, or an empty page if you passed
                only an `etag`, and continues with the next page. `pages()` yields that page with `not_modified` set.

        Raises:
            PetstoreError: A request failed during the iteration. To retry the same page, continue iterating.
            ValueError: `max_items` is negative, or `if_none_match` is an `etag` that cannot be sent in a header.
        """
        return PetIterator(self._operations.iterate(status, max_items, page_size, cursor, if_none_match))

    def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> Pet:
        """Adds an animal exactly once, even if this call has to retry the request.

        Args:
            name: The animal's name: 1 to 255 characters, without control characters. It must not consist only of white
                space.
            category_id: The id of the animal's category.
            status: The animal's status. Defaults to available.
            idempotency_key: Calls with the same key within 24 hours add only one animal. After 24 hours, a call with
                the same key adds another animal. Defaults to a new random key for each call. Pass a key if you need to
                repeat a call after restarting your program.

        Raises:
            PetstoreError: `InvalidRequest` if the service rejects the values, or another subclass for other failures.
            ValueError: The idempotency key is not 1 to 255 visible ASCII characters, or the name is not valid Unicode.
        """
        call = self._operations.create_pet(name, category_id, status=status, idempotency_key=idempotency_key)
        return _run(call).parse()

    @deprecated("get_pet will be removed on 5 December 2030; use list_pets with a status instead")
    def get_pet(self, pet_id: int) -> Pet:
        """Returns one animal. Deprecated: it will be removed on 5 December 2030. Use `list_pets` with a status instead.

        Raises:
            PetstoreError: `PetNotFound` if the animal does not exist, or another subclass for other failures.
        """
        return _run(self._operations.fetch_pet(pet_id)).parse()

    def close(self) -> None:
        """Closes the client, which must not be used afterwards. An `http_client` that you passed in stays open."""
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PetstoreWithRawResponse:
    """The operations of `Petstore`, each of which returns a `RawResponse` instead of the parsed value."""

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
        """Requests one page of at most `max_items` animals. Takes the same arguments as `Petstore.list_pets`.

        Raises the same exceptions, and also ValueError if `max_items` is 0, because this method always sends a request.
        """
        call = self._operations.list_pets(
            status, max_items=max_items, page_size=page_size, cursor=cursor, if_none_match=if_none_match
        )
        return _run(call)

    def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> RawResponse[Pet]:
        """Adds an animal. Takes the same arguments and raises the same exceptions as `Petstore.create_pet`."""
        call = self._operations.create_pet(name, category_id, status=status, idempotency_key=idempotency_key)
        return _run(call)

    @deprecated("get_pet will be removed on 5 December 2030; use list_pets with a status instead")
    def get_pet(self, pet_id: int) -> RawResponse[Pet]:
        """Requests one animal. Deprecated. Raises the same exceptions as `Petstore.get_pet`."""
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
    """Iterates over pages of animals. Not thread-safe."""


class PetIterator(_BlockingIterator[Pet]):
    """Iterates over the animals on all pages. Not thread-safe."""

    def __init__(self, pets: AsyncPetIterator) -> None:
        super().__init__(pets)
        self._pets = pets

    def pages(self) -> PageIterator:
        """Returns a new iterator that yields the same animals in pages, or one empty page if there are no animals."""
        return PageIterator(self._pets.pages())


def _run(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine and returns its result. The coroutine never suspends, because its sender blocks."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("the sender of a sync client must block")


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
