"""Sends the requests of a call until one succeeds or the call's budget ends. No I/O: it awaits a `Shell`."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from petstore_client._errors import PetstoreError
from petstore_client._events import Attempt, Events, Wait
from petstore_client._keys import Key, Secret
from petstore_client._messages import Request, Response, Shell, Timeouts
from petstore_client._rate_limiter import RateLimiter
from petstore_client._responses import request_id_of, success_or_error
from petstore_client._retries import Call


class Options(msgspec.Struct, frozen=True):
    """The options that `with_options` can change. Raises ValueError if any is out of range."""

    timeouts: Timeouts
    total_timeout: float
    """The maximum number of seconds for a call, including waits and retries. Infinity means no timeout."""
    headers: Mapping[str, str]
    """Sent with every request. The names are in lower case."""
    strict: bool = False
    """Whether the service should reject unknown parameters and members."""

    def __post_init__(self) -> None:
        if not self.total_timeout > 0:
            raise ValueError("total_timeout must be greater than 0")


class Caller:
    """Makes calls with certain options. Copies with other options share the shell and the rate limiter."""

    def __init__(self, shell: Shell, options: Options, limiter: RateLimiter, events: Events) -> None:
        self.shell = shell
        self.options = options
        self.limiter = limiter
        self.events = events

    def with_options(self, key: Key | None = None, **changes: Any) -> "Caller":
        """Returns a copy with other options. Raises ValueError if any is out of range.

        A copy with another key has its own rate limiter.
        """
        changed, old = copy.copy(self), self.limiter
        changed.options = msgspec.structs.replace(self.options, **changes)
        if key is not None:
            changed.limiter = RateLimiter(key, old.max_connections, self.events, has_responded=old.has_responded)
        return changed

    async def call(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        """Sends a request, repeating it if necessary. Returns the successful response, or raises the last error."""
        shell, now = self.shell, self.shell.clock()
        request = Request(method, path, _headers(self.options, headers or {}), body)
        call = Call(now, now + self.options.total_timeout, shell.alarm())
        try:
            while True:
                await self._acquire(call)
                result, again = await self._attempt(call, request)
                if isinstance(result, Response):
                    return result
                if again is None:
                    raise result
                if call.kind in ("late", "crash"):
                    self.events.wait(Wait(again - shell.clock(), "failure"))
                if call.kind != "refused":  # the pause after a 429 is spent in the queue
                    await self._sleep_until(again, call)
        except BaseException:  # an error, or the task was cancelled, or Ctrl-C was pressed
            self.limiter.leave(call)
            raise

    async def _acquire(self, call: Call) -> None:
        """Waits until the rate limiter lets the call send a request with the current API key."""
        while (hold := self.limiter.ask(call, self.shell.clock())) is not None:
            await call.alarm.wait(hold.seconds, is_pause=hold.is_pause)
        if self.limiter.key.must_load:
            loaded: Secret | Exception
            try:
                loaded = await self.limiter.key.load()
            except Exception as error:
                loaded = error
            self.limiter.renew(call, loaded, self.shell.clock())

    async def _attempt(self, call: Call, request: Request) -> tuple[Response | PetstoreError, float | None]:
        """Sends a request. Returns the successful response or the error, and when to send it again, if ever."""
        limiter, shell, started = self.limiter, self.shell, call.started
        assert call.secret is not None
        to_connect = call.end(is_unreachable=not limiter.has_responded) - started
        timeouts = self.options.timeouts.within(call.deadline - started, to_connect)
        outcome = await shell.send(request, call.secret, timeouts)
        now, unix = shell.clock(), shell.wall_clock()
        result = success_or_error(outcome, unix)
        error = None if isinstance(result, Response) else result
        again = limiter.finish(call, outcome, error, now, shell.random())
        is_last = error is None or not call.may_repeat() or again >= limiter.end(call)
        if isinstance(outcome, Response):
            limiter.warn_of_expiry(outcome, unix)
        attempt = Attempt(
            method=request.method,
            path=request.path,
            number=call.number,
            seconds=now - started,
            status=outcome.status if isinstance(outcome, Response) else None,
            code=None if error is None else error.code,
            request_id=request_id_of(outcome),
            wait=None if is_last else again - now,
        )
        self.events.attempt(attempt)
        return result, None if is_last else again

    async def _sleep_until(self, moment: float, call: Call) -> None:
        while (left := moment - self.shell.clock()) > 0:
            await call.alarm.wait(left, is_pause=True)


def _headers(options: Options, call_headers: dict[str, str]) -> dict[str, str]:
    headers = {**options.headers, **call_headers}
    if options.strict:
        # Put `handling=strict` first, because only the first value of a preference counts (RFC 7240).
        others = headers.get("prefer")
        headers["prefer"] = f"handling=strict, {others}" if others else "handling=strict"
    return headers


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
