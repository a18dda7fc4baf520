"""What the client reports while a call runs: each attempt and each wait, to the caller's callbacks and to the log."""

import logging
from collections.abc import Callable
from typing import Literal

from petstore_client._models import Model

logger = logging.getLogger("petstore_client")
logger.addHandler(logging.NullHandler())  # the program decides whether and where to log


class Attempt(Model, frozen=True):
    """One request that was sent, and its outcome."""

    method: str
    path: str
    """With its query, below the base URL."""
    number: int
    """Counted from 1."""
    max_attempts: int
    seconds: float
    """From sending the request to the end of the response."""
    status: int | None
    """None if there was no response."""
    code: str | None
    """The error's code; None for a success."""
    request_id: str | None
    wait: float | None
    """Seconds until the next attempt; None if this was the last."""

    def __str__(self) -> str:
        result = f"{self.status or 'no response'}{f' {self.code}' if self.code else ''}"
        again = "" if self.wait is None else f", again in {self.wait:.2f} s"
        request = f", request {self.request_id}" if self.request_id else ""
        attempt = f"attempt {self.number} of {self.max_attempts}"
        return f"{self.method} {self.path}: {result} in {self.seconds:.3f} s, {attempt}{again}{request}"


class Wait(Model, frozen=True):
    """A wait that begins now."""

    method: str
    path: str
    seconds: float
    reason: Literal["rate_limit", "retry"]
    """`rate_limit`: the pause after a 429, which all calls of a client share. `retry`: the delay after a failure."""


class Events:
    """Reports to the log and to the callbacks of one client."""

    def __init__(
        self, on_attempt: Callable[[Attempt], object] | None = None, on_wait: Callable[[Wait], object] | None = None
    ) -> None:
        self._on_attempt = on_attempt
        self._on_wait = on_wait

    def attempt(self, attempt: Attempt) -> None:
        """Successes are logged at DEBUG, failures at INFO: the last failure is raised, so no attempt is a warning."""
        level = logging.DEBUG if attempt.code is None else logging.INFO
        if logger.isEnabledFor(level):
            logger.log(level, "%s", attempt)
        if self._on_attempt is not None:
            self._on_attempt(attempt)

    def wait(self, wait: Wait, *, log: bool) -> None:
        """Logged at WARNING: a program that stands still for a minute says why."""
        if log:
            logger.warning("waiting %.0f s for the rate limit", wait.seconds)
        if self._on_wait is not None:
            self._on_wait(wait)
