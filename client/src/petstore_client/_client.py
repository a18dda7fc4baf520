"""The public face: `Petstore` for threads, `AsyncPetstore` for asyncio, and the iterators that their lists are."""

import os
import random
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from petstore_client._core import Core, Rules, Walk
from petstore_client._models import Pet, RateLimit, Status
from petstore_client._tries import Try, log_try

if TYPE_CHECKING:
    import httpx

    from petstore_client._shells import TaskShell, ThreadShell

LIVE = "http://127.0.0.1:8080/v1"
"""The live environment of a local server."""
STAGING = "http://127.0.0.1:8080/staging/v1"
"""The staging environment of a local server: animals, keys and limits of its own."""

PAGE = 100
REMOVAL = "get_pet is deprecated and ends on 5 December 2030; use list_pets with a status filter instead"


class _Client:
    """What both clients are made of, whatever carries their requests."""

    def __init__(
        self,
        api_key: str | None,
        base_url: str | None,
        rules: Rules,
        timeout: float,
        connect_timeout: float,
        on_try: Callable[[Try], object] | None,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        from petstore_client._shells import Address, check_url

        base_url = (base_url or os.environ.get("PETSTORE_BASE_URL") or LIVE).rstrip("/")
        check_url(base_url)
        if not (rules.retries >= 0 and rules.max_wait >= 0 and timeout > 0 and connect_timeout > 0):
            raise ValueError("retries and max_wait must be at least 0, timeout and connect_timeout more than 0")
        self._address: Address = Address(base_url, _usable_key(api_key), timeout, connect_timeout)
        self._core = Core(rules, clock=clock, wall_clock=time.time, random=random, report=_reporter(on_try))

    @property
    def base_url(self) -> str:
        """Where requests go."""
        return self._address.base_url

    @property
    def rate_limit(self) -> RateLimit | None:
        """What the last answer said about the key's limit, or None before the first."""
        return self._core.pace.rate_limit

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.base_url}>"


class Petstore(_Client):
    """A client of the pet store. Threads may share one, and should: they then share its pause after a 429.

    Every call waits and retries by itself, as the service asks, and raises a `PetstoreError` when that does not help.

    Args:
        api_key: The API key; without it, the variable `PETSTORE_API_KEY`.
        base_url: Where the service is; without it, the variable `PETSTORE_BASE_URL`, or else `LIVE`.
        retries: How often a request is sent again after a connection error, a timeout, 408, 409 (still in progress),
            429 or 5xx.
        max_wait: The longest wait that a `Retry-After` or a pause may cause, in seconds. What takes longer is raised
            at once.
        timeout: The most that one try may take, in seconds, all in all.
        connect_timeout: The most that connecting may take of it.
        http_client: An `httpx.Client` to send with. It is not closed with this client; its timeouts and its `auth`
            are not used.
        transport: An `httpx` transport, instead of a whole client.
        on_try: Called with a `Try` after each request that was sent, whatever came back.
        clock, sleep, random: Stand-ins for `time.monotonic`, `time.sleep` and `random.random`, so that tests of what
            takes minutes take none.

    Raises:
        ValueError: There is no API key, the base URL is none, or an argument is out of range.
    """

    def __init__(
        self,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        retries: int = 2,
        max_wait: float = 60.0,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        http_client: "httpx.Client | None" = None,
        transport: "httpx.BaseTransport | None" = None,
        on_try: Callable[[Try], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(api_key, base_url, Rules(retries, max_wait), timeout, connect_timeout, on_try, clock, random)
        from petstore_client._shells import ThreadShell

        self._shell: ThreadShell = ThreadShell(self._address, http_client, transport, sleep)

    def list_pets(self, status: Status | None = None, *, limit: int = PAGE) -> "PetIterator":
        """All animals in the order of their ids, those of one status if it is given.

        Nothing is asked until the first one is wanted, and each further page only when it is reached.

        Args:
            status: Only animals with this status.
            limit: Animals per page, 1 to 100; not how many there are in all.

        Raises:
            PetstoreError: While iterating. The iterator keeps its place: going on asks for the same page again.
        """
        return PetIterator(self._shell, self._core, status, limit)

    def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> Pet:
        """Add an animal, exactly once however often the request has to be sent.

        Args:
            name: 1 to 255 characters, not only white space, no control characters.
            category_id: The category that the animal belongs to.
            status: Without it the animal is available.
            idempotency_key: What makes two requests the same one, for 24 hours. By default it is random and new for
                each call; give your own to be able to repeat a call after your program has ended.

        Raises:
            PetstoreError: `InvalidRequest` if the service does not take the values, or any other.
            ValueError: The idempotency key is not 1 to 255 visible ASCII characters, or the name has a lone surrogate,
                which no request can carry.
        """
        return self._shell.run(self._core.create_pet(name, category_id, status, _usable_once(idempotency_key)))

    def get_pet(self, pet_id: int) -> Pet:
        """One animal. Deprecated: it ends on 5 December 2030, use `list_pets` with a status instead.

        Raises:
            PetstoreError: `PetNotFound` if there is no such animal, or any other.
        """
        warnings.warn(REMOVAL, DeprecationWarning, stacklevel=2)
        return self._shell.run(self._core.get_pet(pet_id))

    def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        self._shell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class PetIterator(Iterator[Pet]):
    """Animals one by one, over all pages. For one thread."""

    def __init__(self, shell: "ThreadShell", core: Core, status: Status | None, limit: int) -> None:
        self._begin: Callable[[], PageIterator] = lambda: PageIterator(shell, Walk(core, status, limit))
        self._pages = self.pages()
        self._page: Iterator[Pet] = iter(())

    def pages(self) -> "PageIterator":
        """The same animals as lists, one a page, from the first page on."""
        return self._begin()

    def __next__(self) -> Pet:
        for pet in self._page:
            return pet
        self._page = iter(next(self._pages))
        return next(self._page)


class PageIterator(Iterator[list[Pet]]):
    """Pages of animals; none of them is empty. For one thread."""

    def __init__(self, shell: "ThreadShell", walk: Walk) -> None:
        self._shell = shell
        self._walk = walk

    def __next__(self) -> list[Pet]:
        page = self._shell.run(self._walk.next_page())
        if not page:
            raise StopIteration
        return page


class AsyncPetstore(_Client):
    """The same client for asyncio: tasks may share one, and should.

    The arguments are those of `Petstore`, with an `httpx.AsyncClient`, an async transport and an async `sleep`.

    Raises:
        ValueError: There is no API key, the base URL is none, or an argument is out of range.
    """

    def __init__(
        self,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        retries: int = 2,
        max_wait: float = 60.0,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        http_client: "httpx.AsyncClient | None" = None,
        transport: "httpx.AsyncBaseTransport | None" = None,
        on_try: Callable[[Try], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(api_key, base_url, Rules(retries, max_wait), timeout, connect_timeout, on_try, clock, random)
        from petstore_client._shells import TaskShell

        self._shell: TaskShell = TaskShell(self._address, http_client, transport, sleep)

    def list_pets(self, status: Status | None = None, *, limit: int = PAGE) -> "AsyncPetIterator":
        """As `Petstore.list_pets`, for `async for`."""
        return AsyncPetIterator(self._shell, self._core, status, limit)

    async def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> Pet:
        """As `Petstore.create_pet`, and it raises the same."""
        return await self._shell.run(self._core.create_pet(name, category_id, status, _usable_once(idempotency_key)))

    def get_pet(self, pet_id: int) -> Coroutine[Any, Any, Pet]:
        """As `Petstore.get_pet`, to be awaited, and it raises the same. Deprecated as well."""
        # Not `async def`: the warning is to name the line that calls, not the loop that runs the task.
        warnings.warn(REMOVAL, DeprecationWarning, stacklevel=2)
        return self._shell.run(self._core.get_pet(pet_id))

    async def aclose(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        await self._shell.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncPetIterator(AsyncIterator[Pet]):
    """Animals one by one, over all pages. For one task."""

    def __init__(self, shell: "TaskShell", core: Core, status: Status | None, limit: int) -> None:
        self._begin: Callable[[], AsyncPageIterator] = lambda: AsyncPageIterator(shell, Walk(core, status, limit))
        self._pages = self.pages()
        self._page: Iterator[Pet] = iter(())

    def pages(self) -> "AsyncPageIterator":
        """The same animals as lists, one a page, from the first page on."""
        return self._begin()

    async def __anext__(self) -> Pet:
        for pet in self._page:
            return pet
        self._page = iter(await anext(self._pages))
        return next(self._page)


class AsyncPageIterator(AsyncIterator[list[Pet]]):
    """Pages of animals; none of them is empty. For one task."""

    def __init__(self, shell: "TaskShell", walk: Walk) -> None:
        self._shell = shell
        self._walk = walk

    async def __anext__(self) -> list[Pet]:
        page = await self._shell.run(self._walk.next_page())
        if not page:
            raise StopAsyncIteration
        return page


def _usable_key(api_key: str | None) -> str:
    key = (api_key or os.environ.get("PETSTORE_API_KEY", "")).strip()
    if not key:
        raise ValueError("there is no API key: pass api_key, or set PETSTORE_API_KEY")
    if not _is_visible_ascii(key):
        # The HTTP library would complain too, and quote the key while doing so.
        raise ValueError("the API key has characters that no key has")
    return key


def _usable_once(idempotency_key: str | None) -> str:
    if idempotency_key is None:
        return os.urandom(16).hex()
    if not (_is_visible_ascii(idempotency_key) and 1 <= len(idempotency_key) <= 255):
        raise ValueError("idempotency_key must be 1 to 255 visible ASCII characters")
    return idempotency_key


def _is_visible_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _reporter(on_try: Callable[[Try], object] | None) -> Callable[[Try], object]:
    if on_try is None:
        return log_try

    def report(done: Try) -> None:
        log_try(done)
        on_try(done)

    return report
