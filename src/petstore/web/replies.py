"""Writing a reply: its shape, the `Error` body, and the headers that every response carries."""

import functools
import itertools
import secrets
from collections.abc import Iterator

import msgspec

from petstore.errors import STATUS_OF_CODE, RequestError
from petstore.rate_limits import SECOND, Decision

# Headers as they go over the wire, each line with its end. Most are made once and only put together for a reply.
Lines = str


def line(name: str, value: str) -> Lines:
    return f"{name}: {value}\r\n"


def pairs(lines: Lines) -> list[tuple[str, str]]:
    """For hosts that take headers apart from each other."""
    return [(name, value) for name, _, value in (each.partition(": ") for each in lines.split("\r\n")[:-1])]


JSON = line("content-type", "application/json")


class Error(msgspec.Struct, frozen=True):
    """What went wrong."""

    code: str
    message: str
    status: int


class Reply(msgspec.Struct, gc=False):
    status: int
    headers: Lines
    body: bytes = b""


@functools.lru_cache(maxsize=256)
def _error_body(code: str, message: str) -> bytes:
    return msgspec.json.encode(Error(code, message, STATUS_OF_CODE[code]))


def error_reply(code: str, message: str, headers: Lines = "") -> Reply:
    return Reply(STATUS_OF_CODE[code], JSON + headers, _error_body(code, message))


def refusal(error: RequestError) -> Reply:
    return error_reply(error.code, error.message, "".join(line(*pair) for pair in error.headers))


def request_ids() -> Iterator[str]:
    """Unique across processes and restarts, at the price of an increment. To be called after a fork, not before."""
    process = secrets.token_hex(6)
    return (f"{process}-{number}" for number in itertools.count(1))


def seconds(milliseconds: int) -> int:
    """Rounded up: exact for integers, where math.ceil would go through floats."""
    return -(-milliseconds // SECOND)


def common_headers(decision: Decision, request_id: str) -> Lines:
    """What every response carries."""
    return (
        f"x-ratelimit-limit: {decision.limit}\r\nx-ratelimit-remaining: {decision.remaining}\r\n"
        f"x-ratelimit-reset: {seconds(decision.reset)}\r\nx-request-id: {request_id}\r\n"
    )
