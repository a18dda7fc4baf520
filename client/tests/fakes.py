"""A fake clock, on which waits take no time, and a fake service, whose responses each test chooses."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import httpx2
import msgspec

from petstore_client import AsyncPetstore, Attempt, Page, Pet, Petstore, PetstoreError, RateLimit, Wait
from petstore_client._events import Events
from petstore_client._messages import Failure, Request, Response, Timeouts
from petstore_client._operations import Operations, Options
from petstore_client._rate_limiter import RateLimiter

KEY = "pets_live_aKeyThatNoOneMaySee"
REX = {"id": 1, "name": "Rex", "categoryId": 7, "status": "available"}


class Clock:
    """A clock that advances only during sleeps."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


class Sleep(NamedTuple):
    seconds: float


class _Step:
    def __init__(self, step: Request | Sleep) -> None:
        self._step = step

    def __await__(self) -> Generator[Any, Any, Any]:
        outcome = yield self._step
        return outcome


class SteppedSender:
    """Hands each request and each sleep to the test that drives the coroutine with `send`."""

    async def send(self, request: Request) -> Response | Failure:
        outcome: Response | Failure = await _Step(request)
        return outcome

    async def sleep(self, seconds: float, /) -> None:
        await _Step(Sleep(seconds))


DEFAULTS = Options(2, Timeouts(30.0, 5.0, 30.0, 30.0, 30.0), 120.0, {})


def options_with(**changes: Any) -> Options:
    """Returns a client's default options with some changes. Raises ValueError if an option is out of range."""
    return msgspec.structs.replace(DEFAULTS, **changes)


def operations(
    clock: Callable[[], float], options: Options = DEFAULTS, events: Events | None = None, **replaced: Any
) -> Operations:
    """Returns operations that a test drives step by step. By default, all random numbers are 0.5."""
    defaults: dict[str, Any] = {"wall_clock": lambda: 0.0, "random": lambda: 0.5, "random_key": lambda: "random"}
    return Operations(SteppedSender(), options, RateLimiter(), events or Events(), clock=clock, **(defaults | replaced))


def response(status: int, body: object = None, **headers: object) -> Response:
    """Returns a response. The argument `x_request_id="7"` becomes the header x-request-id."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status, {name.replace("_", "-"): str(value) for name, value in headers.items()}, raw)


def error(status: int, code: str, **headers: object) -> Response:
    return response(status, {"code": code, "message": f"It is {code}.", "status": status}, **headers)


def limits(limit: int, remaining: int, reset: int) -> dict[str, object]:
    return {"x_ratelimit_limit": limit, "x_ratelimit_remaining": remaining, "x_ratelimit_reset": reset}


class Run:
    """Runs one call to its end on a fake clock. Records what it sent and when, and its result or error."""

    def __init__(
        self, call: Coroutine[Any, Any, Any], outcomes: Iterable[Response | Failure], clock: Clock, part: float = 1.0
    ) -> None:
        """If `part` is below 1, each sleep ends early, after this fraction of its time."""
        self.sent: list[tuple[float, Request]] = []
        self.waited = 0.0
        self.result: Any = None
        self.error: PetstoreError | None = None
        left = iter(outcomes)
        outcome: Response | Failure | None = None
        try:
            while True:
                step = call.send(outcome)
                outcome = None
                if isinstance(step, Request):
                    self.sent.append((clock(), step))
                    outcome = next(left)
                else:
                    seconds = step.seconds * part if step.seconds > 1e-3 else step.seconds
                    clock.sleep(seconds)
                    self.waited += seconds
        except StopIteration as done:
            self.result = done.value
        except PetstoreError as raised:
            self.error = raised
        finally:
            call.close()

    @property
    def parsed(self) -> Any:
        return self.result.parse()


Outcome = httpx2.Response | Exception
Kind = Literal["sync", "async"]


class Service:
    """A fake service for both clients. Responds with the given outcomes in order, and records the requests."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.requests: list[httpx2.Request] = []
        self.transport = httpx2.MockTransport(self._handle)

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def http_response(status: int, body: object = None, headers: dict[str, str] | None = None) -> httpx2.Response:
    return httpx2.Response(status, headers=headers, content=b"" if body is None else json.dumps(body).encode())


def http_error(status: int, code: str, headers: dict[str, str] | None = None) -> httpx2.Response:
    return http_response(status, {"code": code, "message": f"It is {code}.", "status": status}, headers)


def http_page(count: int, next_cursor: str = "", first_id: int = 1, etag: str = "") -> httpx2.Response:
    pets = [REX | {"id": first_id + number} for number in range(count)]
    headers = {"Link": f'</v1/pets?limit=2&cursor={next_cursor}>; rel="next"'} if next_cursor else {}
    return http_response(200, pets, headers | ({"ETag": etag} if etag else {}))


class Client:
    """Wraps either client in the same blocking methods, so that one suite can test both."""

    def __init__(self, kind: Kind, service: Service | None = None, clock: Clock | None = None, **options: Any) -> None:
        self.kind = kind
        self.attempts: list[Attempt] = []
        self.waits: list[Wait] = []
        self.clock = clock or Clock()
        defaults: dict[str, Any] = {"api_key": KEY, "clock": self.clock, "random": lambda: 0.5}
        defaults |= {"on_attempt": self.attempts.append, "on_wait": self.waits.append}
        options = defaults | options
        if service is not None:
            options["transport"] = service.transport
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self.inner: Petstore | AsyncPetstore
        if kind == "async":
            self.inner = AsyncPetstore(sleep=self.clock.sleep_async, **options)
        else:
            self.inner = Petstore(sleep=self.clock.sleep, **options)

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
