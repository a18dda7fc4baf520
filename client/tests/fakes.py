"""Stand-ins for time and for the service: what takes minutes takes none, and every answer is the test's."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import httpx

from petstore_client import AsyncPetstore, Pet, Petstore, PetstoreError, RateLimit
from petstore_client._core import Core, Rules
from petstore_client._steps import Answer, Failure, Flow, Send
from petstore_client._tries import Try

KEY = "pets_live_aKeyThatNoOneMaySee"
REX = {"id": 1, "name": "Rex", "categoryId": 7, "status": "available"}


class Clock:
    """Seconds that pass only in sleep."""

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


def core(clock: Callable[[], float], rules: Rules | None = None, **more: Any) -> Core:
    stand_ins: dict[str, Any] = {"wall_clock": lambda: 0.0, "random": lambda: 0.5, "report": lambda done: None}
    return Core(rules or Rules(), clock=clock, **(stand_ins | more))


def answer(status: int, body: object = None, **headers: object) -> Answer:
    """`x_request_id="7"` is the header x-request-id."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, {name.replace("_", "-"): str(value) for name, value in headers.items()}, raw)


def error(status: int, code: str, **headers: object) -> Answer:
    return answer(status, {"code": code, "message": f"It is {code}.", "status": status}, **headers)


def limits(limit: int, remaining: int, reset: int) -> dict[str, object]:
    return {"x_ratelimit_limit": limit, "x_ratelimit_remaining": remaining, "x_ratelimit_reset": reset}


class Run:
    """One flow, run to its end on a clock: what it sent and when, and what came of it."""

    def __init__(self, flow: Flow[Any], outcomes: Iterable[Answer | Failure], clock: Clock, nap: float = 1.0) -> None:
        """With `nap` below 1 each sleep ends early, after that part of it."""
        self.sent: list[tuple[float, Send]] = []
        self.waited = 0.0
        self.result: Any = None
        self.error: PetstoreError | None = None
        left = iter(outcomes)
        try:
            step = next(flow)
            while True:
                if isinstance(step, Send):
                    self.sent.append((clock(), step))
                    step = flow.send(next(left))
                else:
                    seconds = step.seconds * nap if step.seconds > 1e-3 else step.seconds
                    clock.sleep(seconds)
                    self.waited += seconds
                    step = next(flow)
        except StopIteration as done:
            self.result = done.value
        except PetstoreError as raised:
            self.error = raised


Outcome = httpx.Response | Exception
Kind = Literal["threads", "asyncio"]


class Service:
    """Answers with what it was given, in order, and keeps the requests. As a transport it serves both clients."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.requests: list[httpx.Request] = []
        self.transport = httpx.MockTransport(self._handle)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def response(status: int, body: object = None, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(status, headers=headers, content=b"" if body is None else json.dumps(body).encode())


def refusal(status: int, code: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return response(status, {"code": code, "message": f"It is {code}.", "status": status}, headers)


class Client:
    """Either client, with the same methods to call: one suite shows that both do the same."""

    def __init__(self, kind: Kind, service: Service | None = None, clock: Clock | None = None, **options: Any) -> None:
        self.kind = kind
        self.tries: list[Try] = []
        self.clock = clock or Clock()
        stand_ins: dict[str, Any] = {"api_key": KEY, "on_try": self.tries.append, "clock": self.clock}
        options = stand_ins | {"random": lambda: 0.5} | options
        if service is not None:
            options["transport"] = service.transport
        self._loop = asyncio.new_event_loop() if kind == "asyncio" else None
        self.inner: Petstore | AsyncPetstore
        if kind == "asyncio":
            self.inner = AsyncPetstore(sleep=self.clock.sleep_async, **options)
        else:
            self.inner = Petstore(sleep=self.clock.sleep, **options)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self.inner, Petstore):
            self.inner.close()
        else:
            self._done(self.inner.aclose())
        if self._loop is not None:
            self._loop.close()

    @property
    def rate_limit(self) -> RateLimit | None:
        return self.inner.rate_limit

    def create_pet(self, *args: Any, **options: Any) -> Pet:
        pet: Pet = self._done(self.inner.create_pet(*args, **options))
        return pet

    def get_pet(self, pet_id: int) -> Pet:
        pet: Pet = self._done(self.inner.get_pet(pet_id))
        return pet

    def list_pets(self, *args: Any, **options: Any) -> Iterator[Pet]:
        pets: Iterator[Pet] = self._iterate(self.inner.list_pets(*args, **options))
        return pets

    def pages(self, *args: Any, **options: Any) -> Iterator[list[Pet]]:
        pages: Iterator[list[Pet]] = self._iterate(self.inner.list_pets(*args, **options).pages())
        return pages

    def _iterate(self, items: Any) -> Any:
        if self._loop is None:
            return items
        return _Stepped(items, self._loop)

    def _done(self, result: Any) -> Any:
        return result if self._loop is None else self._loop.run_until_complete(result)


class _Stepped(Iterator[Any]):
    """An async iterator, stepped from outside its loop."""

    def __init__(self, items: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._items = items
        self._loop = loop

    def __next__(self) -> Any:
        try:
            return self._loop.run_until_complete(self._items.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
