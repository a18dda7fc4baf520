"""Writing a reply: its shape, the `Error` body, and the headers that every response carries."""

import functools
import itertools
import secrets
from collections.abc import Iterator

import msgspec

from petstore.errors import STATUS_OF_CODE, RequestError
from petstore.windows import SECOND, Decision

Headers = list[tuple[str, str]]

JSON = ("content-type", "application/json")


class Error(msgspec.Struct, frozen=True):
    """What went wrong."""

    code: str
    message: str
    status: int


class Reply(msgspec.Struct, gc=False):
    status: int
    headers: Headers
    body: bytes = b""


@functools.lru_cache(maxsize=256)
def _error_body(code: str, message: str) -> bytes:
    return msgspec.json.encode(Error(code, message, STATUS_OF_CODE[code]))


def error_reply(code: str, message: str, *headers: tuple[str, str]) -> Reply:
    return Reply(STATUS_OF_CODE[code], [JSON, *headers], _error_body(code, message))


def refusal(error: RequestError) -> Reply:
    return error_reply(error.code, error.message, *error.headers)


def request_ids() -> Iterator[str]:
    """Unique across processes and restarts, at the price of an increment. To be called after a fork, not before."""
    process = secrets.token_hex(6)
    return (f"{process}-{number}" for number in itertools.count(1))


def seconds(milliseconds: int) -> int:
    """Rounded up: exact for integers, where math.ceil would go through floats."""
    return -(-milliseconds // SECOND)


def common_headers(decision: Decision, request_id: str) -> Headers:
    """What every response carries."""
    return [
        ("x-ratelimit-limit", str(decision.limit)),
        ("x-ratelimit-remaining", str(decision.remaining)),
        ("x-ratelimit-reset", str(seconds(decision.reset))),
        ("x-request-id", request_id),
    ]
