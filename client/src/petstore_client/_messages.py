"""Requests, responses, and the protocols of the shells, which do all I/O for the core. No I/O."""

import math
from collections.abc import Awaitable, Mapping
from typing import Literal, Protocol

import msgspec

from petstore_client._keys import Secret

FailureKind = Literal["unreachable", "outage", "final"]
"""Why no response arrived: no connection, a broken connection or a timeout, or a request that can never be sent."""


class Timeouts(msgspec.Struct, frozen=True):
    """The total and per-phase timeouts for one attempt, in seconds. Raises ValueError if any is not positive."""

    total: float
    connect: float
    read: float
    write: float

    def __post_init__(self) -> None:
        if not all(seconds > 0 for seconds in msgspec.structs.astuple(self)):
            raise ValueError("a timeout must be greater than 0")

    def within(self, total: float, connect: float = math.inf) -> "Timeouts":
        """Returns a copy that allows at most `total` seconds, and at most `connect` seconds for the connection."""
        return Timeouts(_at_most(self.total, total), _at_most(self.connect, connect), self.read, self.write)


def _at_most(seconds: float, limit: float) -> float:
    return min(seconds, max(limit, 0.001))


class Request(msgspec.Struct, frozen=True):
    """A request without the base URL and the API key, which the shell adds."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None


class Response(msgspec.Struct, frozen=True):
    """A complete response. The header names are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    problem: str | None = None
    """Why the response could not be read completely, for example because it is too large. The body is then empty."""


class Failure(msgspec.Struct, frozen=True):
    """No response arrived."""

    cause: Exception
    reason: str
    kind: FailureKind
    timed_out: bool = False


class Alarm(Protocol):
    """Lets one call wait until another call wakes it."""

    def wake(self) -> None: ...

    # Can return early, so callers must check the clock afterwards. `is_pause` says that the call waits for the end of
    # this time. Otherwise, it waits to be woken. Raises ClientClosed if the client is closed.
    def wait(self, seconds: float, *, is_pause: bool) -> Awaitable[object]: ...


class Shell(Protocol):
    """Does all I/O of a client. Its methods raise ClientClosed if the client is closed."""

    @property
    def is_closed(self) -> bool: ...

    def alarm(self) -> Alarm: ...

    async def send(self, request: Request, secret: Secret, timeouts: Timeouts) -> Response | Failure: ...

    def clock(self) -> float: ...

    def wall_clock(self) -> float: ...

    def random(self) -> float: ...

    def new_idempotency_key(self) -> str: ...
