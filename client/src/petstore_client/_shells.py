"""The shells of the clients, which send requests, wait and read the clocks. One blocks, and one uses asyncio."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import httpx2

from petstore_client._errors import ClientClosed, PetstoreError
from petstore_client._http import (
    CLIENT_OPTIONS,
    FAILURES,
    Budget,
    Endpoint,
    TooLarge,
    check_types,
    current_budget,
    opened_stream,
    response_of,
)
from petstore_client._keys import Secret
from petstore_client._messages import Alarm, Failure, Request, Response, Timeouts

ClientT = TypeVar("ClientT", httpx2.Client, httpx2.AsyncClient)
MAX_WAIT = 86_400.0  # seconds; timers do not accept infinity


class Time:
    """The clocks, the random numbers and the waits of a client. A transport can replace them with its own `time`."""

    def clock(self) -> float:
        return time.monotonic()

    def wall_clock(self) -> float:
        return time.time()

    def random(self) -> float:
        return random.random()  # nosec B311  # noqa: S311  # spreads retries; not a secret

    def block(self, event: threading.Event, seconds: float, *, is_pause: bool) -> None:
        """Blocks the thread until the event, or for some seconds."""
        event.wait(min(seconds, MAX_WAIT))

    async def suspend(self, future: asyncio.Future[None], seconds: float, *, is_pause: bool) -> None:
        """Suspends the task until the future is done, or for some seconds."""
        timer = asyncio.get_running_loop().call_later(min(seconds, MAX_WAIT), wake, future)
        try:
            await future
        finally:
            timer.cancel()


class _Shell(Generic[ClientT]):
    """What both shells have in common: the time, and the calls that wait."""

    def __init__(self, endpoint: Endpoint, client: ClientT, transport: object, *, owns_client: bool) -> None:
        found = getattr(transport, "time", None)
        self.time = found if isinstance(found, Time) else Time()
        self.clock, self.wall_clock, self.random = self.time.clock, self.time.wall_clock, self.time.random
        self._endpoint = endpoint
        self._client: ClientT = client
        self._owns_client = owns_client
        self._is_closed = False
        self._waiting: set[Alarm] = set()

    @property
    def is_closed(self) -> bool:
        return self._is_closed or self._client.is_closed

    def new_idempotency_key(self) -> str:
        return os.urandom(16).hex()

    @contextmanager
    def waiting(self, alarm: Alarm) -> Generator[None, None, None]:
        """Lets `close` wake this alarm. Raises ClientClosed if the client is or has been closed."""
        self._waiting.add(alarm)
        try:
            self._raise_if_closed()
            yield
            self._raise_if_closed()
        finally:
            self._waiting.discard(alarm)

    def _raise_if_closed(self) -> None:
        if self.is_closed:
            raise ClientClosed()

    def _wake_all(self) -> None:
        self._is_closed = True
        for alarm in list(self._waiting):
            alarm.wake()


class BlockingShell(_Shell[httpx2.Client]):
    """Blocks the calling thread, so its coroutines never suspend. Threads may share a shell."""

    def __init__(
        self, endpoint: Endpoint, client: httpx2.Client | None, transport: httpx2.BaseTransport | None
    ) -> None:
        check_types(client, httpx2.Client, transport, httpx2.BaseTransport)
        super().__init__(
            endpoint,
            client or httpx2.Client(transport=transport, **CLIENT_OPTIONS),
            transport,
            owns_client=client is None,
        )
        self._lock = threading.Lock()
        self._sending = 0

    def alarm(self) -> Alarm:
        self._raise_if_closed()
        return _BlockingAlarm(self)

    async def send(self, request: Request, secret: Secret, timeouts: Timeouts) -> Response | Failure:
        with self._lock:
            self._raise_if_closed()
            self._sending += 1
        budget = Budget(timeouts)
        token = current_budget.set(budget)
        try:
            return self._exchange(request, secret, budget)
        except FAILURES as error:
            return self._endpoint.failure(error)
        finally:
            current_budget.reset(token)
            with self._lock:
                self._sending -= 1
            self._close_when_idle()

    def _exchange(self, request: Request, secret: Secret, budget: Budget) -> Response:
        built = self._endpoint.build(self._client, request, secret, {"timeout": budget, "trace": _trace})
        response = self._client.send(built, auth=None, stream=True)
        body: list[bytes] = []
        try:
            for chunk in response.iter_bytes():
                budget.charge(len(chunk))
                body.append(chunk)
        except (TooLarge, httpx2.DecodingError) as problem:
            return response_of(response, [], problem)
        finally:
            response.close()
        return response_of(response, body)

    def close(self) -> None:
        self._wake_all()
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        # Closing a socket that another thread is reading would not wake that thread, and would free the descriptor.
        with self._lock:
            is_idle = self._is_closed and self._owns_client and not self._sending
        if is_idle:
            self._client.close()


class AsyncioShell(_Shell[httpx2.AsyncClient]):
    """Awaits in the event loop of its first call. Tasks may share a shell."""

    def __init__(
        self, endpoint: Endpoint, client: httpx2.AsyncClient | None, transport: httpx2.AsyncBaseTransport | None
    ) -> None:
        check_types(client, httpx2.AsyncClient, transport, httpx2.AsyncBaseTransport)
        super().__init__(
            endpoint,
            client or httpx2.AsyncClient(transport=transport, **CLIENT_OPTIONS),
            transport,
            owns_client=client is None,
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    def alarm(self) -> Alarm:
        self._raise_if_closed()
        self._loop = self._loop or asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            message = "this client belongs to another event loop; create a client in each event loop"
            raise PetstoreError(message, code="wrong_event_loop")
        return _AsyncioAlarm(self)

    async def send(self, request: Request, secret: Secret, timeouts: Timeouts) -> Response | Failure:
        self._raise_if_closed()
        try:
            async with asyncio.timeout(min(timeouts.total, MAX_WAIT)):
                return await self._exchange(request, secret, Budget(timeouts))
        except FAILURES as error:
            return self._endpoint.failure(error)

    async def _exchange(self, request: Request, secret: Secret, budget: Budget) -> Response:
        built = self._endpoint.build(self._client, request, secret, {"timeout": budget})
        response = await self._client.send(built, auth=None, stream=True)
        body: list[bytes] = []
        try:
            async for chunk in response.aiter_bytes():
                budget.charge(len(chunk))
                body.append(chunk)
        except (TooLarge, httpx2.DecodingError) as problem:
            return response_of(response, [], problem)
        finally:
            await response.aclose()
        return response_of(response, body)

    async def aclose(self) -> None:
        self._wake_all()
        if self._owns_client and self._loop in (None, asyncio.get_running_loop()):
            await self._client.aclose()


class _BlockingAlarm:
    def __init__(self, shell: BlockingShell) -> None:
        self._shell = shell
        self._event = threading.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, seconds: float, *, is_pause: bool) -> None:
        with self._shell.waiting(self):
            self._shell.time.block(self._event, seconds, is_pause=is_pause)
            self._event.clear()


class _AsyncioAlarm:
    def __init__(self, shell: AsyncioShell) -> None:
        self._shell = shell
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._future is not None:
            wake(self._future)

    async def wait(self, seconds: float, *, is_pause: bool) -> None:
        with self._shell.waiting(self):
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._shell.time.suspend(self._future, seconds, is_pause=is_pause)
            finally:
                self._future = None


def wake(future: asyncio.Future[None]) -> None:
    """Lets the task that awaits a future continue."""
    if not future.done():
        future.set_result(None)


def _trace(event: str, info: Mapping[str, Any]) -> None:
    stream = opened_stream(event, info)
    if stream is not None:
        stream.read = _charged(stream.read)


def _charged(read: Callable[[int, float | None], bytes]) -> Callable[[int, float | None], bytes]:
    def charged(max_bytes: int, timeout: float | None = None) -> bytes:
        budget = current_budget.get()
        received = read(max_bytes, timeout if budget is None else budget["read"])
        if budget is not None:
            budget.charge(len(received))
        return received

    return charged
