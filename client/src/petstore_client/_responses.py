"""Interprets a response: its result or error, the state of the rate limit, and the next page. No I/O."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar
from urllib.parse import parse_qs

import msgspec

from petstore_client._errors import ConnectionFailed, PetstoreError, TimedOut, UnexpectedResponse, api_error
from petstore_client._messages import Failure, Response
from petstore_client._models import Page, Pet, RateLimit
from petstore_client._retries import retry_after

T = TypeVar("T")

# msgspec raises these for malformed JSON or wrong types, for invalid UTF-8, and for deeply nested JSON, respectively.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class RawResponse(Generic[T]):
    """A successful response with its status and headers. `parse` returns the value in its body."""

    def __init__(self, response: Response, read: Callable[[Response], T]) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.content: bytes = response.body
        self.request_id: str | None = request_id_of(response)
        self._response = response
        self._read = read

    def parse(self) -> T:
        """Returns the animal or the page that the response contains.

        Raises UnexpectedResponse if the response cannot be parsed.
        """
        try:
            return self._read(self._response)
        except UNREADABLE as cause:
            raise unexpected(self._response, f"the response has an unexpected body: {cause}") from cause

    def unexpected(self, why: str) -> UnexpectedResponse:
        """Returns the error to raise if the value in the body makes no sense."""
        return unexpected(self._response, why)

    def __repr__(self) -> str:
        return f"<RawResponse {self.status}>"


def unexpected(response: Response, message: str) -> UnexpectedResponse:
    """Returns the error for a successful response that does not contain what this API returns."""
    return UnexpectedResponse(
        message,
        code="unexpected_response",
        status=response.status,
        request_id=request_id_of(response),
        headers=response.headers,
    )


class _ErrorBody(msgspec.Struct, frozen=True):
    code: str
    message: str


_read_error = msgspec.json.Decoder(_ErrorBody).decode
_read_pet = msgspec.json.Decoder(Pet).decode
_read_pets = msgspec.json.Decoder(tuple[Pet, ...]).decode


def read_pet(response: Response) -> Pet:
    """Reads an animal from the body. If the body is not valid, raises one of the exceptions in UNREADABLE."""
    return _read_pet(response.body)


def read_page(response: Response) -> Page:
    """Reads a page. If the response is not valid, raises one of the exceptions in UNREADABLE."""
    return Page(_read_pets(response.body), next_cursor(response))


def success_or_error(outcome: Response | Failure, now: float) -> Response | PetstoreError:
    """Returns the response if it is successful. Otherwise, returns the error to raise. `now` is a Unix timestamp."""
    if isinstance(outcome, Failure):
        kind, code = (TimedOut, "timed_out") if outcome.timed_out else (ConnectionFailed, "connection_failed")
        failed = kind(outcome.reason, code=code)
        failed.__cause__ = outcome.cause
        return failed
    # A 304 is a success if the caller's headers contain If-None-Match. Its body is empty, so `parse` fails.
    if 200 <= outcome.status < 300 or outcome.status == 304:
        return outcome if outcome.problem is None else unexpected(outcome, outcome.problem)
    try:
        body = _read_error(outcome.body)
    except UNREADABLE:
        # The response is probably from a proxy, not from the service.
        body = _ErrorBody("unknown", f"received a {outcome.status} response with an unexpected body")
    wait = retry_after(outcome.headers, now)
    return api_error(body.code, body.message, outcome.status, outcome.headers, wait, rate_limit_of(outcome.headers))


def rate_limit_of(headers: Mapping[str, str]) -> RateLimit | None:
    """Returns the state of the rate limit that the headers describe, or None if they do not describe one."""
    try:
        return RateLimit(
            int(headers["x-ratelimit-limit"]),
            int(headers["x-ratelimit-remaining"]),
            int(headers["x-ratelimit-reset"]),
            headers.get("x-ratelimit-window"),
        )
    except (KeyError, ValueError):
        return None


def request_id_of(outcome: Response | Failure) -> str | None:
    """Returns the request id, or None if there is no response or the response contains no id."""
    return outcome.headers.get("x-request-id") if isinstance(outcome, Response) else None


def next_cursor(response: Response) -> str | None:
    """Returns the cursor in the link to the next page, or None on the last page.

    The rest of the link is ignored, so that a forged link cannot make the client send its key to another address. Takes
    time linear in the length of the header. Raises msgspec.ValidationError if the link contains no cursor.
    """
    for link in response.headers.get("link", "").split("<")[1:]:
        target, _, parameters = link.partition(">")
        if "next" in _relations(parameters):
            cursors = parse_qs(target.partition("?")[2]).get("cursor")
            if not cursors:
                raise msgspec.ValidationError("the link to the next page has no cursor")
            return cursors[0]
    return None


def _relations(parameters: str) -> list[str]:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "rel":
            return value.strip(' \t,"').lower().split()
    return []
