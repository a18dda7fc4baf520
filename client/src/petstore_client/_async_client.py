"""`AsyncPetstore`, the asyncio client. It awaits the coroutines in `_operations.py`."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import deprecated

from petstore_client._base_client import BaseClient, endpoint_of, key_of, options_of
from petstore_client._events import Attempt, Events, Wait
from petstore_client._models import Pet, Status
from petstore_client._operations import PAGE_SIZE, AsyncPetstoreWithRawResponse, get_pet, list_pets
from petstore_client._pages import AsyncPetIterator

if TYPE_CHECKING:
    import httpx2


class AsyncPetstore(BaseClient[str | Callable[[], str | Awaitable[str]]]):
    """The asyncio client. Share one client among all tasks of an event loop, so that they all pause after a 429.

    Takes the same arguments as `Petstore`, except that `http_client` and `transport` must be async, and that the
    function passed as `api_key` can be async.

    Raises:
        ValueError: The API key is missing, the base URL is not valid, or an argument is out of range.
        TypeError: An argument has a wrong type, such as an object of `httpx` instead of `httpx2`.
    """

    def __init__(
        self,
        api_key: str | Callable[[], str | Awaitable[str]] | None = None,
        *,
        base_url: str | None = None,
        timeout: "float | httpx2.Timeout | None" = 30.0,
        total_timeout: float | None = 600.0,
        max_connections: int = 20,
        default_headers: Mapping[str, str] | None = None,
        strict: bool = False,
        allow_http: bool = False,
        http_client: "httpx2.AsyncClient | None" = None,
        transport: "httpx2.AsyncBaseTransport | None" = None,
        on_attempt: Callable[[Attempt], object] | None = None,
        on_wait: Callable[[Wait], object] | None = None,
    ) -> None:
        from petstore_client._shells import AsyncioShell

        key, endpoint = key_of(api_key), endpoint_of(base_url, allow_http)
        options = options_of(timeout, total_timeout, default_headers, strict)
        self._shell = AsyncioShell(endpoint, http_client, transport)
        super().__init__(self._shell, endpoint.base_url, options, key, max_connections, Events(on_attempt, on_wait))

    @property
    def with_raw_response(self) -> AsyncPetstoreWithRawResponse:
        """This client's operations, each of which returns a `RawResponse` instead of the parsed value."""
        return self._operations

    def list_pets(
        self,
        status: Status | None = None,
        *,
        max_items: int | None = None,
        page_size: int = PAGE_SIZE,
        cursor: str | None = None,
    ) -> AsyncPetIterator:
        """Like `Petstore.list_pets`, but returns an async iterator."""
        return list_pets(self._caller, status, max_items, page_size, cursor)

    async def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> Pet:
        """Adds an animal. Takes the same arguments and raises the same exceptions as `Petstore.create_pet`."""
        call = self._operations.create_pet(name, category_id, status=status, idempotency_key=idempotency_key)
        return (await call).parse()

    @deprecated("get_pet will be removed on 5 December 2030; use list_pets with a status instead")
    def get_pet(self, pet_id: int) -> Coroutine[Any, Any, Pet]:
        """Returns one animal. Deprecated. Raises the same exceptions as `Petstore.get_pet`."""
        return self._get_pet(pet_id)

    async def _get_pet(self, pet_id: int) -> Pet:
        return (await get_pet(self._caller, pet_id)).parse()

    async def aclose(self) -> None:
        """Closes the client. Calls that are waiting raise `ClientClosed`. A given `http_client` stays open."""
        await self._shell.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
