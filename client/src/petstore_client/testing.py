"""An in-memory service for tests of programs that use this package. Waits take no time."""

import asyncio
import math
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import urlencode

import httpx2
import msgspec

from petstore_client._async_client import AsyncPetstore
from petstore_client._client import Petstore
from petstore_client._models import Pet, PetStatus
from petstore_client._shells import Time, wake

BASE_URL = "http://127.0.0.1/v1"
LENGTHS = {"minute": 60, "day": 86_400}  # of the windows, in seconds
STATUSES = {
    "invalid_body": 400, "invalid_parameter": 400, "malformed_request": 400, "unauthorized": 401,
    "insufficient_scope": 403, "not_found": 404, "pet_not_found": 404, "method_not_allowed": 405,
    "request_timeout": 408, "gone": 410, "body_too_large": 413, "unsupported_media_type": 415,
    "idempotency_mismatch": 422, "rate_limit_exceeded": 429, "key_banned": 429, "internal_error": 500,
    "unavailable": 503,
}  # fmt: skip


class _NewPet(msgspec.Struct, rename="camel"):
    name: Annotated[str, msgspec.Meta(max_length=255, pattern=r"^(?!\s*\Z)[^\x00-\x1f\x7f-\x9f]*\Z")]
    category_id: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    status: PetStatus = PetStatus.AVAILABLE


class _Query(msgspec.Struct):
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    status: PetStatus | None = None
    cursor: Annotated[str, msgspec.Meta(pattern="^after-[0-9]{1,18}$")] = "after-0"


class _SkippedTime(Time):
    """A clock on which pauses end immediately. Calls that wait for their turn wait in real time."""

    def __init__(self) -> None:
        self.now: float = 1_800_000_000.0
        self._lock = threading.Lock()
        self._wakers: set[Callable[[], object]] = set()

    def clock(self) -> float:
        return self.now

    def wall_clock(self) -> float:
        return self.now

    def random(self) -> float:
        return 0.5

    def advance(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds
            wakers = list(self._wakers)
        for waker in wakers:  # the deadlines of these calls may have passed
            waker()

    def block(self, event: threading.Event, seconds: float, *, is_pause: bool) -> None:
        if is_pause:
            self.advance(seconds)
        else:
            with self._waked(event.set):
                event.wait()

    async def suspend(self, future: asyncio.Future[None], seconds: float, *, is_pause: bool) -> None:
        if is_pause:
            end = self.now + seconds
            await asyncio.sleep(0)  # other tasks may have something to do before the clock advances
            self.advance(max(0.0, end - self.now))
        else:
            with self._waked(lambda: wake(future)):
                await future

    @contextmanager
    def _waked(self, waker: Callable[[], object]) -> Generator[None, None, None]:
        self._wakers.add(waker)
        try:
            yield
        finally:
            self._wakers.discard(waker)


class FakeService(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """A pet store in memory, which is the transport of its clients. Threads or tasks may share it.

    Its clients use its clock, which advances when they pause and when a test calls `advance`. It lists, adds and gets
    animals, checks the API key, and enforces the limits of the key, but has no bans and no preferences.

    Args:
        api_key: The valid API key. To rotate the key, assign another one to the attribute.
        per_minute, per_day: The limits of the key.
    """

    def __init__(
        self, api_key: str = "pets_live_fake", *, per_minute: int = 1_000_000, per_day: int = 1_000_000
    ) -> None:
        self.api_key: str = api_key
        self._limits = {"minute": per_minute, "day": per_day}
        self.pets: list[Pet] = []
        """The animals."""
        self.requests: list[httpx2.Request] = []
        """The requests that have arrived."""
        self._time = _SkippedTime()
        self.time: Time = self._time
        """The clock, which the clients use because it is an attribute of their transport."""
        self._opened = dict.fromkeys(LENGTHS, -math.inf)
        self._used = dict.fromkeys(LENGTHS, 0)
        self._replays: dict[str, tuple[float, bytes, Pet | None]] = {}
        self._faults: list[Callable[[httpx2.Request], httpx2.Response]] = []
        self._lock = threading.RLock()

    @property
    def now(self) -> float:
        """The time on the service's clock, as a Unix timestamp."""
        return self._time.now

    def client(self, **options: Any) -> Petstore:
        """Returns a client of this service. `options` are those of `Petstore`."""
        options = {"api_key": self.api_key, "base_url": BASE_URL} | options
        return Petstore(transport=self, **options)

    def async_client(self, **options: Any) -> AsyncPetstore:
        """Returns an asyncio client of this service. `options` are those of `AsyncPetstore`."""
        options = {"api_key": self.api_key, "base_url": BASE_URL} | options
        return AsyncPetstore(transport=self, **options)

    def advance(self, seconds: float) -> None:
        """Advances the clock. With an asyncio client, call this method in its event loop."""
        self._time.advance(seconds)

    def refuse(self, code: str, *, times: int = 1, retry_after: int | None = None, window: str = "minute") -> None:
        """Responds to the next requests with an error, such as `unavailable`, without performing them.

        `window` is the limit that a 429 names.
        """
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self._plan(times, lambda request: self._error(code, f"This is {code}.", window, headers))

    def fail(self, *, times: int = 1, is_performed: bool = False) -> None:
        """Breaks the connections of the next requests, either before or after performing them."""

        def fault(request: httpx2.Request) -> httpx2.Response:
            if is_performed:
                self._perform(request)
            raise httpx2.ReadError("the fake service broke the connection")

        self._plan(times, fault)

    def hang(self, *, times: int = 1) -> None:
        """Lets the next requests time out, without performing them. This takes time on the service's clock only."""

        def fault(request: httpx2.Request) -> httpx2.Response:
            self.advance(request.extensions["timeout"]["read"])
            raise httpx2.ReadTimeout("the fake service does not respond")

        self._plan(times, fault)

    def forgive(self) -> None:
        """Forgets the faults of requests that have not arrived yet."""
        with self._lock:
            self._faults.clear()

    def respond(self, request: httpx2.Request) -> httpx2.Response:
        """Returns the response to a request, or raises an httpx2 exception. Subclasses can override this method."""
        return self._faults.pop(0)(request) if self._faults else self._perform(request)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Called by httpx2."""
        request.read()
        with self._lock:
            self.requests.append(request)
            return self.respond(request)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Called by httpx2."""
        await request.aread()
        return self.handle_request(request)

    def _plan(self, times: int, fault: Callable[[httpx2.Request], httpx2.Response]) -> None:
        with self._lock:
            self._faults += [fault] * times

    def _perform(self, request: httpx2.Request) -> httpx2.Response:
        if request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return self._error("unauthorized", "The API key is not valid.", "address")
        window, reset = self._admit()
        if reset is not None:
            seconds = max(1, math.ceil(reset - self.now))
            message = f"{self._limits[window]} requests per {window} are used up."
            return self._error("rate_limit_exceeded", message, window, {"Retry-After": str(seconds)})
        path = request.url.path.removeprefix("/v1")
        if path == "/pets" and request.method == "GET":
            return self._list(request, window)
        if path == "/pets" and request.method == "POST":
            return self._create(request, window)
        if request.method == "GET" and path.startswith("/pets/"):
            return self._get(path.removeprefix("/pets/"), window)
        return self._error("not_found", "There is nothing here.", window)

    def _admit(self) -> tuple[str, float | None]:
        """Counts a request if both limits allow it.

        Returns the window that the headers describe and, if it is exhausted, when it ends.
        """
        open_ = {name: self.now < self._opened[name] + LENGTHS[name] for name in LENGTHS}
        used = {name: self._used[name] if open_[name] else 0 for name in LENGTHS}
        exhausted = [name for name in LENGTHS if used[name] >= self._limits[name]]
        if exhausted:
            window = max(exhausted, key=self._reset)
            return window, self._reset(window)
        for name in LENGTHS:
            if not open_[name]:
                self._opened[name] = self.now
            self._used[name] = used[name] + 1
        return min(reversed(LENGTHS), key=lambda name: self._limits[name] - self._used[name]), None

    def _reset(self, window: str) -> float:
        return self._opened[window] + LENGTHS[window]

    def _list(self, request: httpx2.Request, window: str) -> httpx2.Response:
        try:
            query = msgspec.convert(dict(request.url.params), _Query, strict=False)
        except msgspec.ValidationError as error:
            return self._error("invalid_parameter", str(error), window)
        after = int(query.cursor.removeprefix("after-"))
        found = [pet for pet in self.pets if pet.id > after and query.status in (None, pet.status)]
        page = found[: query.limit]
        headers: dict[str, str] = {}
        if len(found) > len(page):
            next_query = {**request.url.params, "cursor": f"after-{page[-1].id}"}
            headers["Link"] = f'</v1/pets?{urlencode(next_query)}>; rel="next"'
        return self._response(200, page, window, headers)

    def _create(self, request: httpx2.Request, window: str) -> httpx2.Response:
        try:
            new = msgspec.json.decode(request.content, type=_NewPet)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return self._error("invalid_body", str(error), window)
        key = request.headers.get("Idempotency-Key", "")
        created, body, pet = self._replays.get(key, (-math.inf, b"", None))
        if pet is None or self.now - created >= LENGTHS["day"]:
            pet = Pet(len(self.pets) + 1, new.name, new.category_id, new.status)
            self.pets.append(pet)
            if key:
                self._replays[key] = self.now, request.content, pet
            return self._response(201, pet, window)
        if body != request.content:
            return self._error("idempotency_mismatch", "This key was used with another body.", window)
        return self._response(201, pet, window, {"Idempotent-Replayed": "true"})

    def _get(self, pet_id: str, window: str) -> httpx2.Response:
        pet = next((pet for pet in self.pets if str(pet.id) == pet_id), None)
        if pet is None:
            return self._error("pet_not_found", "There is no such animal.", window)
        return self._response(200, pet, window)

    def _error(self, code: str, message: str, window: str, headers: dict[str, str] | None = None) -> httpx2.Response:
        body = {"code": code, "message": message, "status": STATUSES[code]}
        return self._response(STATUSES[code], body, window, headers)

    def _response(
        self, status: int, content: object, window: str, headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        limit = self._limits.get(window, 600)  # of the address or, during a ban, of no window
        reset = self._reset(window) if window in LENGTHS else self.now + 60
        every = {
            "Content-Type": "application/json",
            "X-Request-Id": f"fake-{len(self.requests)}",
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": str(0 if status == 429 else limit - self._used.get(window, 0)),
            "X-RateLimit-Reset": str(math.ceil(max(reset, self.now))),
            "X-RateLimit-Window": window,
        }
        every.update(headers or {})
        return httpx2.Response(status, headers=every, content=msgspec.json.encode(content))
