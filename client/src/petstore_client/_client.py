"""`Petstore`, the synchronous client. It runs the coroutines in `_operations.py` with a shell that blocks."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from typing_extensions import deprecated

from petstore_client._base_client import BaseClient, endpoint_of, key_of, options_of
from petstore_client._calls import Caller
from petstore_client._events import Attempt, Events, Wait
from petstore_client._models import Page, Pet, Status
from petstore_client._operations import PAGE_SIZE, AsyncPetstoreWithRawResponse, get_pet, list_pets
from petstore_client._pages import AsyncPetIterator
from petstore_client._responses import RawResponse

if TYPE_CHECKING:
    import httpx2


T = TypeVar("T")


class Petstore(BaseClient[str | Callable[[], str]]):
    """A client for the pet store. Share one client among all threads, so that they all pause after a 429.

    Every call honours `Retry-After`, and is retried until `total_timeout` has passed if the service refuses it or is
    not available. It raises a `PetstoreError` if the last attempt fails.

    Args:
        api_key: The API key, or a function that returns it. The function is called on first use and, at most once a
            minute, after the key has been refused. Defaults to the environment variable `PETSTORE_API_KEY`.
        base_url: The base URL of the service. Defaults to the environment variable `PETSTORE_BASE_URL`, then to a
            service on this machine, `http://127.0.0.1:8080/v1`.
        timeout: The maximum number of seconds for one attempt. An `httpx2.Timeout` sets a separate timeout for each
            phase instead. None means no timeout. With None or a number, connecting takes at most 5 s.
        total_timeout: The maximum number of seconds for a call, including waits and retries. For `list_pets`, it
            applies to each page. If the next wait would exceed it, the call raises the last error immediately. None
            means no timeout. Until the service has responded once, failed connections end after 10 s.
        max_connections: The maximum number of requests in flight. Further calls wait in a queue.
        default_headers: Headers to send with every request.
        strict: Whether to send `Prefer: handling=strict`, so that the service rejects unknown parameters and members.
        allow_http: Whether the base URL can be unencrypted (`http://`) if its host is not this machine.
        http_client: The `httpx2.Client` to use. It stays open when the `Petstore` client is closed. Its timeouts and
            `auth` are ignored.
        transport: An `httpx2` transport. Cannot be combined with `http_client`.
        on_attempt: Called with an `Attempt` after each request.
        on_wait: Called with a `Wait` once for each pause and each long queue. A wait longer than 5 s is also logged as
            a warning.

    Raises:
        ValueError: The API key is missing, the base URL is not valid, or an argument is out of range.
        TypeError: An argument has a wrong type, such as an object of `httpx` instead of `httpx2`.
    """

    def __init__(
        self,
        api_key: str | Callable[[], str] | None = None,
        *,
        base_url: str | None = None,
        timeout: "float | httpx2.Timeout | None" = 30.0,
        total_timeout: float | None = 600.0,
        max_connections: int = 20,
        default_headers: Mapping[str, str] | None = None,
        strict: bool = False,
        allow_http: bool = False,
        http_client: "httpx2.Client | None" = None,
        transport: "httpx2.BaseTransport | None" = None,
        on_attempt: Callable[[Attempt], object] | None = None,
        on_wait: Callable[[Wait], object] | None = None,
    ) -> None:
        from petstore_client._shells import BlockingShell

        key, endpoint = key_of(api_key), endpoint_of(base_url, allow_http)
        options = options_of(timeout, total_timeout, default_headers, strict)
        self._shell = BlockingShell(endpoint, http_client, transport)
        super().__init__(self._shell, endpoint.base_url, options, key, max_connections, Events(on_attempt, on_wait))

    @property
    def with_raw_response(self) -> "PetstoreWithRawResponse":
        """This client's operations, each of which returns a `RawResponse` instead of the parsed value."""
        return PetstoreWithRawResponse(self._caller)

    def list_pets(
        self,
        status: Status | None = None,
        *,
        max_items: int | None = None,
        page_size: int = PAGE_SIZE,
        cursor: str | None = None,
    ) -> "PetIterator":
        """Iterates over animals ordered by id, fetching pages as needed.

        Args:
            status: Return only animals with this status.
            max_items: The maximum number of animals to return. None means no limit.
            page_size: The maximum number of animals per request, from 1 to 100. Defaults to 100.
            cursor: The `next_cursor` of an earlier page, to continue after that page. By default, the iteration starts
                at the first animal.

        Raises:
            PetstoreError: A request failed during the iteration. To retry the same page, continue iterating.
            ValueError: `max_items` is negative.
        """
        return PetIterator(list_pets(self._caller, status, max_items, page_size, cursor))

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
            TypeError: An argument has a wrong type, such as `bytes` for the name.
        """
        call = self._operations.create_pet(name, category_id, status=status, idempotency_key=idempotency_key)
        return _run(call).parse()

    @deprecated("get_pet will be removed on 5 December 2030; use list_pets with a status instead")
    def get_pet(self, pet_id: int) -> Pet:
        """Returns one animal. Deprecated: it will be removed on 5 December 2030. Use `list_pets` with a status instead.

        Raises:
            PetstoreError: `PetNotFound` if the animal does not exist, or another subclass for other failures.
        """
        return _run(get_pet(self._caller, pet_id)).parse()

    def close(self) -> None:
        """Closes the client. Calls that are waiting raise `ClientClosed`, and requests in flight finish.

        A given `http_client` stays open.
        """
        self._shell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PetstoreWithRawResponse:
    """The operations of `Petstore`, each of which returns a `RawResponse` instead of the parsed value."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._operations = AsyncPetstoreWithRawResponse(caller)

    def list_pets(
        self,
        status: Status | None = None,
        *,
        max_items: int | None = None,
        page_size: int = PAGE_SIZE,
        cursor: str | None = None,
    ) -> RawResponse[Page]:
        """Requests one page of at most `max_items` animals. Takes the same arguments as `Petstore.list_pets`.

        Raises the same exceptions, and also ValueError if `max_items` is 0, because this method always sends a request.
        """
        return _run(self._operations.list_pets(status, max_items=max_items, page_size=page_size, cursor=cursor))

    def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> RawResponse[Pet]:
        """Adds an animal. Takes the same arguments and raises the same exceptions as `Petstore.create_pet`."""
        call = self._operations.create_pet(name, category_id, status=status, idempotency_key=idempotency_key)
        return _run(call)

    @deprecated("get_pet will be removed on 5 December 2030; use list_pets with a status instead")
    def get_pet(self, pet_id: int) -> RawResponse[Pet]:
        """Requests one animal. Deprecated. Raises the same exceptions as `Petstore.get_pet`."""
        return _run(get_pet(self._caller, pet_id))


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
    raise RuntimeError("the shell of a sync client must block")


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
