"""What the core sends and gets back, and the protocol of the parts that send and sleep for it. No I/O."""

from collections.abc import Awaitable, Mapping
from typing import Protocol

import msgspec


class Request(msgspec.Struct, frozen=True):
    """A request without the base URL and the API key, which the sender adds."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    timeout: float


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
    unsent: bool = False
    """True if certainly no part of the request reached the service."""


class Sender(Protocol):
    """All I/O of a client. `SyncSender` and `AsyncSender` in `_http.py` implement it."""

    async def send(self, request: Request) -> Response | Failure: ...

    def sleep(self, seconds: float, /) -> Awaitable[object]: ...  # may end early: the core reads the clock again
