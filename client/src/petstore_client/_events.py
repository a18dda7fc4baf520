"""Reports attempts and waits to the caller's callbacks and to the log."""

import logging
from collections.abc import Callable
from typing import Literal, TypeVar

from petstore_client._errors import KeyBanned, PetstoreError, RateLimited
from petstore_client._escaping import escape
from petstore_client._models import Model

# This logger deliberately has no NullHandler, so that warnings are printed even if the program does not set up logging.
logger = logging.getLogger("petstore_client")

WaitReason = Literal[
    "minute_limit", "day_limit", "ban", "address_limit", "rate_limit", "outage", "no_response", "failure", "queue"
]
"""The reason for a wait. See `Wait.reason`."""
_TEXTS: dict[WaitReason, str] = {
    "minute_limit": "per-minute rate limit",
    "day_limit": "per-day rate limit",
    "ban": "the API key is banned",
    "address_limit": "rate limit of this address",
    "rate_limit": "rate limit",
    "outage": "the service is unavailable",
    "no_response": "no response from the service",
    "failure": "the last attempt failed",
    "queue": "earlier requests are still waiting for responses",
}
_WINDOWS: dict[str | None, WaitReason] = {
    "minute": "minute_limit", "day": "day_limit", "ban": "ban", "address": "address_limit",
}  # fmt: skip
LOGGED_WAIT = 5.0  # in seconds; longer waits are logged as warnings

E_ = TypeVar("E_")


class Attempt(Model, frozen=True):
    """A request that was sent, and its outcome."""

    method: str
    path: str
    """The path below the base URL, with the query."""
    number: int
    """The number of the attempt, starting at 1."""
    seconds: float
    """The time from sending the request to the end of the response."""
    status: int | None
    """None if there was no response."""
    code: str | None
    """The error's code, or None if the request succeeded."""
    request_id: str | None
    wait: float | None
    """The number of seconds until the next attempt can be sent, or None if this was the last attempt."""

    def __str__(self) -> str:
        result = f"{self.status or 'no response'}{f' {self.code}' if self.code else ''}"
        again = "" if self.wait is None else f", retrying in {self.wait:.2f} s"
        request = f", request {self.request_id}" if self.request_id else ""
        return f"{self.method} {self.path}: {result} in {self.seconds:.3f} s, attempt {self.number}{again}{request}"


class Wait(Model, frozen=True):
    """A wait that is about to begin. For the reason `queue`, a wait that has lasted for a second."""

    seconds: float
    reason: WaitReason
    """`failure` (a 408 or 500) delays one call. The other reasons delay all calls that use the same API key: a 429 for
    a limit of the key or of the client's address, an outage, no response, or a queue for connections."""
    calls: int = 1
    """How many calls wait."""

    def __str__(self) -> str:
        calls = f", {self.calls:,} calls" if self.calls > 1 else ""
        return f"waiting {self.seconds:.0f} s: {_TEXTS[self.reason]}{calls}"


def wait_reason(error: PetstoreError) -> WaitReason:
    """Returns why calls have to wait after this error."""
    if isinstance(error, RateLimited):
        return _WINDOWS.get(error.window, "ban" if isinstance(error, KeyBanned) else "rate_limit")
    if error.status is None:
        return "no_response"
    return "outage" if error.status in (502, 503, 504) else "failure"


class Events:
    """Reports attempts and waits to the log and to one client's callbacks.

    An exception in a callback is logged, so that it cannot lose the result of a call.
    """

    def __init__(
        self, on_attempt: Callable[[Attempt], object] | None = None, on_wait: Callable[[Wait], object] | None = None
    ) -> None:
        self._on_attempt = on_attempt
        self._on_wait = on_wait

    def attempt(self, attempt: Attempt) -> None:
        """Reports an attempt. Logs successes at DEBUG and failures at INFO.

        Failures are not logged as warnings, because the call raises an exception if its last attempt fails.
        """
        level = logging.DEBUG if attempt.code is None else logging.INFO
        if logger.isEnabledFor(level):
            logger.log(level, "%s", escape(str(attempt)))
        _call_back(self._on_attempt, attempt)

    def wait(self, wait: Wait) -> None:
        """Reports a wait. Logs a warning if it is longer than 5 s."""
        if wait.seconds > LOGGED_WAIT:
            logger.warning("%s", wait)
        _call_back(self._on_wait, wait)


def _call_back(callback: Callable[[E_], object] | None, event: E_) -> None:
    if callback is not None:
        try:
            callback(event)
        except Exception:
            logger.exception("a callback of the client raised an exception")
