"""Fake services whose responses each test chooses, and both clients behind the same blocking methods."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import httpx2

from petstore_client import AsyncPetstore, Attempt, Page, Pet, Petstore, RateLimit, Wait
from petstore_client.testing import FakeService

KEY = "pets_live_aKeyThatNoOneMaySee"
BASE_URL = "http://127.0.0.1/v1"
REX = {"id": 1, "name": "Rex", "categoryId": 7, "status": "available"}

Outcome = httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]
Kind = Literal["sync", "async"]


class Service(FakeService):
    """Responds with the given outcomes in order, on a clock on which waits take no time."""

    def __init__(self, *outcomes: Outcome) -> None:
        super().__init__(KEY)
        self.outcomes = list(outcomes)
        self.times: list[float] = []
        """When each request arrived, in seconds since the start."""
        self._start = self.now

    def respond(self, request: httpx2.Request) -> httpx2.Response:
        self.times.append(self.seconds)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        if not isinstance(outcome, httpx2.Response):
            return outcome(request)
        if not outcome.is_closed:  # has a stream
            return outcome
        return httpx2.Response(outcome.status_code, headers=outcome.headers, content=outcome.content)

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return round(self.now - self._start, 6)

    @property
    def waits(self) -> list[float]:
        """The seconds between the requests."""
        return [round(after - before, 6) for before, after in zip(self.times, self.times[1:], strict=False)]


class HeldService(Service):
    """Holds each request of an asyncio client until the test responds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[asyncio.Future[Outcome]] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.held.append(future)
        self.outcomes.append(await future)
        return self.handle_request(request)

    async def settle(self) -> None:
        """Lets all tasks run until each of them waits."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def respond_to(self, number: int, outcome: Outcome) -> None:
        """Responds to the request with this number, and lets all tasks react."""
        self.held[number].set_result(outcome)
        await self.settle()

    @property
    def names(self) -> list[str]:
        """The names in the create requests to which the test has responded, in order."""
        return [json.loads(request.content)["name"] for request in self.requests]


def limits(
    remaining: int, limit: int = 60, reset: int = 1_800_000_060, window: str | None = "minute"
) -> dict[str, str]:
    """Returns the headers that describe a rate limit."""
    headers = {"Limit": limit, "Remaining": remaining, "Reset": reset, "Window": window}
    return {f"X-RateLimit-{name}": str(value) for name, value in headers.items() if value is not None}


def response(status: int, body: object = None, headers: dict[str, str] | None = None) -> httpx2.Response:
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return httpx2.Response(status, headers=headers, content=raw)


def error(
    status: int, code: str, headers: dict[str, str] | None = None, *, retry_after: object = None
) -> httpx2.Response:
    more = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return response(status, {"code": code, "message": f"It is {code}.", "status": status}, (headers or {}) | more)


def refusal(retry_after: object = None, window: str = "minute", code: str = "rate_limit_exceeded") -> httpx2.Response:
    return error(429, code, limits(0, window=window), retry_after=retry_after)


def created(headers: dict[str, str] | None = None, **changes: object) -> httpx2.Response:
    return response(201, REX | changes, headers)


def page(count: int, next_cursor: str = "", first_id: int = 1) -> httpx2.Response:
    pets = [REX | {"id": first_id + number} for number in range(count)]
    headers = {"Link": f'</v1/pets?limit=2&cursor={next_cursor}>; rel="next"'} if next_cursor else {}
    return response(200, pets, headers)


class Client:
    """Wraps either client in the same blocking methods, so that one suite can test both."""

    def __init__(self, kind: Kind, service: FakeService | None = None, **options: Any) -> None:
        self.kind = kind
        self.attempts: list[Attempt] = []
        self.waits: list[Wait] = []
        options = {"on_attempt": self.attempts.append, "on_wait": self.waits.append} | options
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self.inner: Petstore | AsyncPetstore
        if service is not None:
            self.inner = service.async_client(**options) if kind == "async" else service.client(**options)
        else:
            options.setdefault("api_key", KEY)
            self.inner = AsyncPetstore(**options) if kind == "async" else Petstore(**options)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._loop is not None:
            self._loop.close()

    def close(self) -> None:
        if isinstance(self.inner, Petstore):
            self.inner.close()
        else:
            self.finish(self.inner.aclose())

    @property
    def rate_limit(self) -> RateLimit | None:
        return self.inner.rate_limit

    def create_pet(self, *args: Any, **options: Any) -> Pet:
        pet: Pet = self.finish(self.inner.create_pet(*args, **options))
        return pet

    def get_pet(self, pet_id: int) -> Pet:
        pet: Pet = self.finish(self.inner.get_pet(pet_id))
        return pet

    def list_pets(self, *args: Any, **options: Any) -> Iterator[Pet]:
        pets: Iterator[Pet] = self.iterate(self.inner.list_pets(*args, **options))
        return pets

    def pages(self, *args: Any, **options: Any) -> Iterator[Page]:
        pages: Iterator[Page] = self.iterate(self.inner.list_pets(*args, **options).pages())
        return pages

    def finish(self, result: Any) -> Any:
        """Returns the result of a call. Awaits it if the client is async."""
        return result if self._loop is None else self._loop.run_until_complete(result)

    def iterate(self, items: Any) -> Any:
        """Returns a blocking iterator, whether the client is async or not."""
        return items if self._loop is None else _Stepped(items, self._loop)


class _Stepped(Iterator[Any]):
    """Iterates over an async iterator from outside its event loop."""

    def __init__(self, items: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._items = items
        self._loop = loop

    def __next__(self) -> Any:
        try:
            return self._loop.run_until_complete(self._items.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
