"""What an answer means: a success, an error, the state of the limit, the next page. Functions of values. No I/O."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from petstore_client._errors import ConnectionFailed, PetstoreError, TimedOut, UnexpectedAnswer, api_error
from petstore_client._models import Pet, RateLimit
from petstore_client._retry import retry_after
from petstore_client._steps import Answer, Failure

T = TypeVar("T")

# What msgspec raises: for JSON and types, for UTF-8, and for absurd nesting.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _ErrorBody(msgspec.Struct, frozen=True):
    code: str
    message: str


_read_error = msgspec.json.Decoder(_ErrorBody).decode
_read_pet = msgspec.json.Decoder(Pet).decode
_read_pets = msgspec.json.Decoder(list[Pet]).decode


def pet_of(answer: Answer) -> Pet:
    """Raises UnexpectedAnswer."""
    return _read(_read_pet, answer)


def pets_of(answer: Answer) -> list[Pet]:
    """Raises UnexpectedAnswer."""
    return _read(_read_pets, answer)


def success_or_error(outcome: Answer | Failure, now: float) -> Answer | PetstoreError:
    """The answer itself if it is a success, otherwise what to raise. `now` is a Unix timestamp."""
    if isinstance(outcome, Failure):
        kind, code = (TimedOut, "timed_out") if outcome.timed_out else (ConnectionFailed, "connection_failed")
        failed = kind(outcome.reason, code=code)
        failed.__cause__ = outcome.cause
        return failed
    if 200 <= outcome.status < 300:
        return outcome
    try:
        body = _read_error(outcome.body)
    except UNREADABLE:
        # Not from the service itself: a proxy's page, say.
        body = _ErrorBody("unknown", f"the answer is {outcome.status} without a body that this interface knows")
    wait = retry_after(outcome.headers, now)
    return api_error(body.code, body.message, outcome.status, request_id_of(outcome), wait, rate_limit_of(outcome))


def rate_limit_of(outcome: Answer | Failure) -> RateLimit | None:
    # A 401 speaks of the limit of the caller's address: it has no key that it could speak of.
    if isinstance(outcome, Failure) or outcome.status == 401:
        return None
    headers = outcome.headers
    try:
        return RateLimit(
            int(headers["x-ratelimit-limit"]), int(headers["x-ratelimit-remaining"]), int(headers["x-ratelimit-reset"])
        )
    except (KeyError, ValueError):
        return None


def request_id_of(outcome: Answer | Failure) -> str | None:
    return outcome.headers.get("x-request-id") if isinstance(outcome, Answer) else None


def next_query(answer: Answer) -> str | None:
    """The query of the link to the next page, whatever other links there are.

    Only the query is taken: so the key stays with the base URL, whatever address a proxy or a public URL puts there.
    """
    for target, parameters in re.findall(r"<([^>]*)>([^<]*)", answer.headers.get("link", "")):
        relation = re.search(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))', parameters, re.IGNORECASE)
        if relation and "next" in (relation[1] or relation[2]).lower().split():
            return str(target).partition("?")[2]
    return None


def _read(read: Callable[[bytes], T], answer: Answer) -> T:
    try:
        return read(answer.body)
    except UNREADABLE as cause:
        raise UnexpectedAnswer(
            f"the answer is not one of this interface: {cause}",
            code="unexpected_answer",
            status=answer.status,
            request_id=request_id_of(answer),
        ) from cause
