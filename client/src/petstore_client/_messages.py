"""Requests, responses, and the protocol that senders implement. No I/O."""

from collections.abc import Awaitable, Mapping
from typing import Protocol

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    """The total and per-phase timeouts for one attempt, in seconds. Raises ValueError if any is not positive."""

    total: float
    connect: float
    read: float
    write: float
    pool: float
    """The timeout for waiting for a permit from the rate limiter, and for waiting for a free connection."""

    def __post_init__(self) -> None:
        if not all(seconds > 0 for seconds in msgspec.structs.astuple(self)):
            raise ValueError("a timeout must be greater than 0")

    def within(self, seconds: float) -> "Timeouts":
        """Returns a copy in which the total timeout is at most `seconds`."""
        return msgspec.structs.replace(self, total=min(self.total, max(seconds, 0.001)))


class Request(msgspec.Struct, frozen=True):
    """A request without the base URL and the API key, which the sender adds."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    timeouts: Timeouts


class Response(msgspec.Struct, frozen=True):
    """A complete response. The header names are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Failure(msgspec.Struct, frozen=True):
    """No complete response arrived."""

    cause: Exception
    reason: str
    timed_out: bool = False


class Sender(Protocol):
    """Performs all of a client's I/O. Implemented by `SyncSender` and `AsyncSender` in `_http.py`."""

    async def send(self, request: Request) -> Response | Failure: ...

    # This method can return early, so callers must check the clock afterwards.
    def sleep(self, seconds: float, /) -> Awaitable[object]: ...
