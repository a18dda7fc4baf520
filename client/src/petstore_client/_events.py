"""Reports each attempt and each wait to the caller's callbacks and to the log."""

import logging
from collections.abc import Callable
from typing import Literal

from petstore_client._escaping import escape
from petstore_client._models import Model

# This logger deliberately has no NullHandler, so that warnings are printed even if the program does not set up logging.
logger = logging.getLogger("petstore_client")

WaitReason = Literal["minute_limit", "day_limit", "ban", "outage", "failure", "no_response"]
"""The reason for a wait. See `Wait.reason`."""
_REASONS: dict[WaitReason, str] = {
    "minute_limit": "per-minute rate limit",
    "day_limit": "per-day rate limit",
    "ban": "the API key is banned",
    "outage": "the service is unavailable",
    "failure": "the last attempt failed",
    "no_response": "no response from the service",
}
LOGGED_WAIT = 5.0  # in seconds; longer waits are logged as warnings


class Attempt(Model, frozen=True):
    """A request that was sent, and its outcome."""

    method: str
    path: str
    """The path below the base URL, with the query."""
    number: int
    """The number of the attempt, starting at 1."""
    max_attempts: int
    seconds: float
    """The time from sending the request to the end of the response."""
    status: int | None
    """None if there was no response."""
    code: str | None
    """The error's code, or None if the request succeeded."""
    request_id: str | None
    wait: float | None
    """The number of seconds until the next attempt, or None if this was the last attempt."""

    def __str__(self) -> str:
        result = f"{self.status or 'no response'}{f' {self.code}' if self.code else ''}"
        again = "" if self.wait is None else f", retrying in {self.wait:.2f} s"
        request = f", request {self.request_id}" if self.request_id else ""
        attempt = f"attempt {self.number} of {self.max_attempts}"
        return f"{self.method} {self.path}: {result} in {self.seconds:.3f} s, {attempt}{again}{request}"


class Wait(Model, frozen=True):
    """A wait that is about to begin."""

    method: str
    path: str
    seconds: float
    reason: WaitReason
    """`minute_limit`, `day_limit` and `ban` are pauses after a 429, which apply to all of the client's calls. `outage`
    (a 503), `failure` (any other service error) and `no_response` are delays before this call is retried."""

    def __str__(self) -> str:
        return f"waiting {self.seconds:.0f} s: {_REASONS[self.reason]}"


class Events:
    """Reports attempts and waits to the log and to one client's callbacks."""

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
        if self._on_attempt is not None:
            self._on_attempt(attempt)

    def wait(self, wait: Wait, *, is_first: bool = True) -> None:
        """Reports a wait. Logs a warning if the wait is longer than 5 s and no other call has logged the same pause."""
        if is_first and wait.seconds > LOGGED_WAIT:
            logger.warning("%s", wait)
        if self._on_wait is not None:
            self._on_wait(wait)
