"""What the core sends and gets back, and the protocol of the parts that send and sleep for it. No I/O."""

from collections.abc import Awaitable, Mapping
from typing import Protocol

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    """The most seconds that one attempt may take, in all and in each phase. Raises ValueError if one is not above 0."""

    total: float
    connect: float
    read: float
    write: float
    pool: float
    """Waiting for a permit of the rate limiter, and for a free connection."""

    def __post_init__(self) -> None:
        if not all(seconds > 0 for seconds in msgspec.structs.astuple(self)):
            raise ValueError("a timeout must be more than 0")

    def within(self, seconds: float) -> "Timeouts":
        """The same timeouts, but for an attempt that may take at most this long."""
        return msgspec.structs.replace(self, total=min(self.total, max(seconds, 0.001)))


class Request(msgspec.Struct, frozen=True):
    """A request without the base URL and the API key, which the sender adds."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    timeouts: Timeouts


class Response(msgspec.Struct, frozen=True):
    """A complete response. The names of the headers are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Failure(msgspec.Struct, frozen=True):
    """No complete response arrived."""

    cause: Exception
    reason: str
    timed_out: bool = False


class Sender(Protocol):
    """All I/O of a client. `SyncSender` and `AsyncSender` in `_http.py` implement it."""

    async def send(self, request: Request) -> Response | Failure: ...

    def sleep(self, seconds: float, /) -> Awaitable[object]: ...  # may end early: the core reads the clock again
