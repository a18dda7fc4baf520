"""The vocabulary between the core, which decides, and the shells, which act: a step out, an outcome back. No I/O."""

from collections.abc import Generator, Mapping
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Send(msgspec.Struct, frozen=True):
    """Send this request. The key and the base URL are the shell's to add."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class Wait(msgspec.Struct, frozen=True):
    """Sleep this long. The clock is looked at afterwards, so waking early does no harm."""

    seconds: float


class Answer(msgspec.Struct, frozen=True):
    """A whole answer. The names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Failure(msgspec.Struct, frozen=True):
    """There was no whole answer."""

    cause: Exception
    reason: str
    timed_out: bool = False
    unsent: bool = False
    """It is certain that nothing of the request arrived."""


Flow = Generator[Send | Wait, Answer | Failure, T]
"""A call: it is sent the outcome of each `Send`, is resumed after each `Wait`, and returns its result."""
