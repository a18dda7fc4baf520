"""Creates replies, including `Error` bodies."""

import functools
import os
from collections.abc import Iterator
from typing import ClassVar

import msgspec

from petstore.errors import (
    STATUS_OF_CODE,
    InternalError,
    KeyBanned,
    RateLimitExceeded,
    RequestError,
    ServiceUnavailable,
)
from petstore.rate_limits import BANNED, SECOND, Decision

# Header lines as sent, including the line endings. Most are created once and reused in many replies.
Lines = str


def line(name: str, value: str) -> Lines:
    return f"{name}: {value}\r\n"


JSON = line("content-type", "application/json")
# Without one of these headers, a cache could decide for itself how long to keep a response.
NO_STORE = line("cache-control", "no-store")
PRIVATE = line("cache-control", "private, no-cache") + line("vary", "Authorization")

# Maps an HTTP status to the error code and the message for input that is not a valid request.
REJECTIONS = {
    400: ("malformed_request", "The request is not valid HTTP/1.1."),
    408: ("request_timeout", "The request did not arrive in time."),
    414: ("malformed_request", "The request URL is too long."),
    431: ("malformed_request", "The request has too many header fields, or they are too large."),
    501: ("malformed_request", "The request's Transfer-Encoding is not supported."),
    505: ("malformed_request", "The request's HTTP version is not supported."),
}


class Error(msgspec.Struct, frozen=True):
    """The body of an error response."""

    code: str
    message: str
    status: int


class Reply(msgspec.Struct, gc=False):
    status: int
    headers: Lines
    body: bytes = b""
    pet: int | None = None  # the id of the animal that was added, for the access log
    code: str = ""  # the error code, if any
    stream: ClassVar[None] = None  # replies are never streamed


@functools.lru_cache(maxsize=256)
def _error_body(code: str, message: str, status: int) -> bytes:
    return msgspec.json.encode(Error(code, message, status))


def error_reply(code: str, message: str, headers: Lines = "", status: int = 0) -> Reply:
    """Returns the reply for an error. `status` is required only for codes that have more than one status."""
    status = status or STATUS_OF_CODE[code]
    return Reply(status, JSON + NO_STORE + headers, _error_body(code, message, status), code=code)


def reply_of(error: RequestError) -> Reply:
    return error_reply(error.code, error.message, "".join(line(*pair) for pair in error.headers))


def refusal(decision: Decision) -> Reply:
    """Returns the 429 for a refused request.

    This must be fast, because most requests in a flood are refused. To save time, the headers and the body are cached,
    and no exception is raised.
    """
    error = KeyBanned if decision.outcome is BANNED else RateLimitExceeded
    headers, body = _refusal_parts(error, max(1, seconds(decision.wait)))
    return Reply(429, headers, body, code=error.code)


@functools.lru_cache(maxsize=1024)
def _refusal_parts(error: type[RequestError], retry_after: int) -> tuple[Lines, bytes]:
    made = reply_of(error(headers=(("retry-after", str(retry_after)),)))
    return made.headers, made.body


def internal_error(request_id: str) -> InternalError:
    return InternalError(f"Something went wrong. Logged as {request_id}.")


def unavailable(retry_after: int) -> ServiceUnavailable:
    return ServiceUnavailable(headers=(("retry-after", str(retry_after)),))


def request_ids() -> Iterator[str]:
    """Yields random 128-bit ids, which reveal nothing about the service. For speed, generates them in blocks.

    Must be called after a fork, because processes that shared a block would yield the same ids.
    """
    while True:
        block = os.urandom(16 * 512).hex()
        for start in range(0, len(block), 32):
            yield block[start : start + 32]


def seconds(milliseconds: int) -> int:
    """Converts milliseconds to seconds, rounding up. Integer arithmetic keeps the result exact."""
    return -(-milliseconds // SECOND)
