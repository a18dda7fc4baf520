"""Implements the API's operations: decides what to send, whether to retry and how long to wait. No I/O.

The operations are coroutines that await a `Sender`. The async client awaits them. The sync client's sender blocks, so
its coroutines finish without ever suspending.
"""

import copy
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

import msgspec
from typing_extensions import deprecated

from petstore_client._errors import PetstoreError, RateLimited, TimedOut
from petstore_client._events import Attempt, Events, Wait
from petstore_client._messages import Request, Response, Sender, Timeouts
from petstore_client._models import Page, Pet, Status
from petstore_client._pages import AsyncPetIterator, limit_of
from petstore_client._rate_limiter import RateLimiter
from petstore_client._responses import RawResponse, read_page, read_pet, request_id_of, success_or_error
from petstore_client._retries import delay_after, is_retryable, wait_reason

PAGE_SIZE = 100
MIN_POLL, MAX_POLL = 0.005, 0.25  # the shortest and longest time between checks for a free permit, in seconds


class Options(msgspec.Struct, frozen=True):
    """The options that `with_options` can change. Raises ValueError if any is out of range."""

    max_retries: int
    timeouts: Timeouts
    total_timeout: float
    """The maximum number of seconds for a call, including waits and retries. Infinity means no timeout."""
    headers: Mapping[str, str]
    """Sent with every request. The names are in lower case."""
    strict: bool = False
    """Whether the service should reject unknown parameters and members."""

    def __post_init__(self) -> None:
        if not self.max_retries >= 0:
            raise ValueError("max_retries must be at least 0")
        if not self.total_timeout > 0:
            raise ValueError("total_timeout must be greater than 0")


class Operations:
    """The API's operations. Each returns a raw response. Copies made by `with_options` share the rate limiter."""

    def __init__(
        self,
        sender: Sender,
        options: Options,
        limiter: RateLimiter,
        events: Events,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Callable[[], float],
        random_key: Callable[[], str],
    ) -> None:
        self._sender = sender
        self.options = options
        self.limiter = limiter
        self._events = events
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random
        self._random_key = random_key

    def with_options(self, **changes: Any) -> "Operations":
        """Returns a copy with different options. Raises ValueError if any is out of range."""
        changed = copy.copy(self)
        changed.options = msgspec.structs.replace(self.options, **changes)
        return changed

    async def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> RawResponse[Pet]:
        """Adds an animal.

        Raises PetstoreError if the request fails, or ValueError if the name or the idempotency key is not valid.
        """
        if idempotency_key is None:
            idempotency_key = self._random_key()
        if not (is_visible_ascii(idempotency_key) and 1 <= len(idempotency_key) <= 255):
            raise ValueError("idempotency_key must be 1 to 255 visible ASCII characters")
        new: dict[str, object] = {"name": name, "categoryId": category_id}
        if status is not None:
            new["status"] = status
        headers = {"content-type": "application/json", "idempotency-key": idempotency_key}
        try:
            body = msgspec.json.encode(new)
        except UnicodeEncodeError as error:
            raise ValueError("the name is not valid Unicode") from error
        return RawResponse(await self._call("POST", "/pets", headers, body), read_pet)

    @deprecated("get_pet will be removed on 5 December 2030; use list_pets with a status instead")
    def get_pet(self, pet_id: int) -> Coroutine[Any, Any, RawResponse[Pet]]:
        """Requests one animal. Raises PetstoreError if the request fails."""
        # Do not use `async def`, because `deprecated` would then import asyncio, which takes longer to import than the
        # rest of the package.
        return self.fetch_pet(pet_id)

    async def fetch_pet(self, pet_id: int) -> RawResponse[Pet]:
        """Requests one animal without issuing a deprecation warning.

        The clients issue the warning themselves, so that it points to the caller's line.
        """
        return RawResponse(await self._call("GET", f"/pets/{pet_id:d}"), read_pet)

    async def list_pets(
        self,
        status: Status | None = None,
        *,
        max_items: int | None = None,
        page_size: int = PAGE_SIZE,
        cursor: str | None = None,
        if_none_match: Page | str | None = None,
    ) -> RawResponse[Page]:
        """Requests one page of at most `max_items` animals.

        Raises PetstoreError if the request fails, or ValueError if the ETag cannot be sent in a header or `max_items`
        is below 1.
        """
        if max_items is not None and max_items < 1:
            raise ValueError("max_items must be at least 1 for a raw response")
        etag = if_none_match.etag if isinstance(if_none_match, Page) else if_none_match
        if etag is not None and not is_visible_ascii(etag):
            raise ValueError("an ETag in if_none_match must consist of visible ASCII characters")
        path = _path_of_list(status, limit_of(page_size, max_items), cursor)
        response = await self._call("GET", path, {} if etag is None else {"if-none-match": etag})
        return RawResponse(response, partial(read_page, known=if_none_match))

    def iterate(
        self,
        status: Status | None,
        max_items: int | None,
        page_size: int,
        cursor: str | None,
        if_none_match: Page | str | None,
    ) -> AsyncPetIterator:
        """Iterates over at most `max_items` animals after `cursor`. Raises ValueError if `max_items` is negative."""
        if max_items is not None and max_items < 0:
            raise ValueError("max_items must be at least 0")

        def fetch(limit: int, cursor: str | None, known: Page | str | None) -> Awaitable[RawResponse[Page]]:
            return self.list_pets(status, page_size=limit, cursor=cursor, if_none_match=known)

        path = _path_of_list(status, limit_of(page_size, max_items))
        return AsyncPetIterator(fetch, path, max_items, page_size, cursor, if_none_match)

    async def _call(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        """Sends a request, retrying it if necessary. Returns the successful response, or raises the last error."""
        options, number = self.options, 0
        deadline = self._clock() + options.total_timeout
        request = Request(method, path, _headers(options, headers or {}), body, options.timeouts)
        error: PetstoreError | None = None
        while True:
            number += 1
            await self._acquire(request, deadline, error)
            started = self._clock()
            try:
                timeouts = options.timeouts.within(deadline - started)
                outcome = await self._sender.send(msgspec.structs.replace(request, timeouts=timeouts))
            except BaseException:  # the task was cancelled, or Ctrl-C was pressed
                self.limiter.release(started)
                raise
            now = self._clock()
            result = success_or_error(outcome, self._wall_clock())
            error = None if isinstance(result, Response) else result
            wait = self._delay(error, number, started, now)
            self.limiter.release(started, outcome)
            again = is_retryable(error) and number <= options.max_retries and now + wait < deadline
            attempt = Attempt(
                method=method,
                path=path,
                number=number,
                max_attempts=options.max_retries + 1,
                seconds=now - started,
                status=outcome.status if isinstance(outcome, Response) else None,
                code=None if error is None else error.code,
                request_id=request_id_of(outcome),
                wait=wait if again else None,
            )
            self._events.attempt(attempt)
            if isinstance(result, Response):
                return result
            if not again:
                raise result
            if not isinstance(result, RateLimited):  # after a 429, `_acquire` waits until the pause ends
                self._events.wait(Wait(method, path, wait, wait_reason(result)))
                await self._sleep_until(now + wait)

    def _delay(self, error: PetstoreError | None, number: int, started: float, now: float) -> float:
        """Returns the number of seconds until the next attempt. After a 429, pauses all calls."""
        if error is None:
            return 0.0
        if isinstance(error, RateLimited):
            return self.limiter.pause(error, started, now, self._random()) - now
        return delay_after(error, number, self._random())

    async def _acquire(self, request: Request, deadline: float, last_error: PetstoreError | None) -> None:
        """Waits until the rate limiter lets this call send a request. `last_error` is the previous attempt's error.

        Raises RateLimited if a pause would not end before the deadline. If the deadline passes or the wait for a permit
        times out, raises `last_error`, or TimedOut if this is the first attempt.
        """
        poll, polled = MIN_POLL, 0.0
        while (now := self._clock()) < deadline:
            hold = self.limiter.acquire(now)
            if hold is None:
                return
            if hold.refusal is not None:
                wait = Wait(request.method, request.path, hold.pause_end - now, wait_reason(hold.refusal))
                if hold.pause_end >= deadline:
                    error = copy.copy(hold.refusal)  # a copy, so that calls do not share a traceback
                    error.retry_after = wait.seconds
                    raise error
                self._events.wait(wait, is_first=self.limiter.is_first_to_wait(hold.pause_end))
                await self._sleep_until(hold.pause_end)
                poll, polled = MIN_POLL, 0.0
                if isinstance(last_error, RateLimited):  # the call that received the 429 retries first
                    continue
            if polled > min(request.timeouts.total, request.timeouts.pool):
                break
            await self._sender.sleep(min(poll, deadline - now))
            polled += poll
            poll = min(poll * 2, MAX_POLL)
        raise last_error or TimedOut("not sent: earlier requests are still waiting for responses", code="timed_out")

    async def _sleep_until(self, moment: float) -> None:
        while (left := moment - self._clock()) > 0:
            await self._sender.sleep(left)


def _headers(options: Options, call_headers: dict[str, str]) -> dict[str, str]:
    headers = {**options.headers, **call_headers}
    if options.strict:
        # Put `handling=strict` first, because only the first value of a preference counts (RFC 7240).
        others = headers.get("prefer")
        headers["prefer"] = f"handling=strict, {others}" if others else "handling=strict"
    return headers


def _path_of_list(status: Status | None, limit: int, cursor: str | None = None) -> str:
    parameters = {"limit": limit, "status": status, "cursor": cursor}
    return "/pets?" + urlencode({name: value for name, value in parameters.items() if value is not None})


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers with lower-case names. Raises ValueError if a header is invalid.

    The error message does not contain the header's value, which may be secret.
    """
    checked = {name.lower(): value for name, value in headers.items()}
    for name, value in checked.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9a-z-]+", name):
            raise ValueError(f"{name!r} is not a valid header name")
        if name == "authorization":
            raise ValueError("the Authorization header is reserved for the API key; use api_key instead")
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise ValueError(f"the header {name} must be printable ASCII without leading or trailing spaces")
    return checked


def is_visible_ascii(text: str) -> bool:
    """Returns whether the string contains only visible ASCII characters and can therefore be sent in a header."""
    return text.isascii() and text.isprintable() and " " not in text
