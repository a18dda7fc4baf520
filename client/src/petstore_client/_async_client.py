"""`AsyncPetstore`, the asyncio client. It awaits the coroutines in `_operations.py`."""

import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import deprecated

from petstore_client._base_client import BaseClient, endpoint
from petstore_client._events import Attempt, Events, Wait
from petstore_client._models import Page, Pet, Status
from petstore_client._operations import PAGE_SIZE, Operations
from petstore_client._pages import AsyncPetIterator

if TYPE_CHECKING:
    import httpx2


class AsyncPetstore(BaseClient):
    """The asyncio client. Share one client among all tasks, so that they all pause after a 429.

    Takes the same arguments as `Petstore`, except that `http_client`, `transport` and `sleep` must be async.

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
        http_client: "httpx2.AsyncClient | None" = None,
        transport: "httpx2.AsyncBaseTransport | None" = None,
        on_attempt: Callable[[Attempt], object] | None = None,
        on_wait: Callable[[Wait], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        from petstore_client._http import AsyncSender

        target = endpoint(api_key, base_url)
        self._sender: AsyncSender = AsyncSender(target, http_client, transport, sleep)
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
    def with_raw_response(self) -> Operations:
        """This client's operations, each of which returns a `RawResponse` instead of the parsed value."""
        return self._operations

    def list_pets(
        self,
        status: Status | None = None,
        *,
        max_items: int | None = None,
        page_size: int = PAGE_SIZE,
        cursor: str | None = None,
        if_none_match: Page | str | None = None,
    ) -> AsyncPetIterator:
        """Like `Petstore.list_pets`, but returns an async iterator."""
        return self._operations.iterate(status, max_items, page_size, cursor, if_none_match)

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
        return (await self._operations.fetch_pet(pet_id)).parse()

    async def aclose(self) -> None:
        """Closes the client, which must not be used afterwards. An `http_client` that you passed in stays open."""
        await self._sender.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
