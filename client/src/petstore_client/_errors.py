"""The exceptions that a call can raise, and the error codes that each of them covers.

PetstoreError
├── ApiError                  the service returned an error
│   ├── InvalidRequest        invalid_body, invalid_parameter, malformed_request, body_too_large,
│   │                         unsupported_media_type, method_not_allowed
│   ├── Unauthorized          unauthorized
│   ├── InsufficientScope     insufficient_scope
│   ├── NotFound              not_found
│   │   └── PetNotFound       pet_not_found
│   ├── Gone                  gone
│   ├── RequestTimeout        request_timeout, and every other 408
│   ├── IdempotencyMismatch   idempotency_mismatch
│   ├── RateLimited           rate_limit_exceeded, and every other 429
│   │   └── KeyBanned         key_banned
│   └── ServerError           internal_error, unavailable, and every other 5xx
├── ClientClosed              the client was closed, so nothing was sent
├── ConnectionFailed          no response: the service could not be reached, or the connection broke
├── TimedOut                  no response within the timeout
└── UnexpectedResponse        a success status with an unexpected body
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from petstore_client._models import RateLimit

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})  # a default for tests that create errors without headers


class PetstoreError(Exception):
    """The base class of all exceptions that are raised when a call fails."""

    code: str
    """The machine-readable code, from the service or, if it sent no valid code, from the client."""
    message: str
    """The human-readable description."""
    status: int | None
    """The HTTP status, or None if there was no response."""
    request_id: str | None
    """Identifies the request in the service's log. Include it when you ask for help."""
    headers: Mapping[str, str] | None = None
    """The headers of the response, with case-insensitive names, or None if there was no response."""

    def __init__(
        self, message: str, *, code: str, status: int | None = None, request_id: str | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id
        self.__dict__.update(more)

    def __str__(self) -> str:
        return f"{self.message} ({', '.join(self._details())})"

    def _details(self) -> list[str]:
        details = [self.code]
        if self.status is not None:
            details.append(f"status {self.status}")
        if self.request_id is not None:
            details.append(f"request {self.request_id}")
        return details

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # The default implementation would lose the keyword arguments when the exception is pickled.
        return _unpickle, (type(self), self.__dict__)


class ApiError(PetstoreError):
    """The service returned an error.

    This class itself is raised only if this version of the client does not recognise the error code.
    """

    status: int  # pyright: ignore[reportIncompatibleVariableOverride]  # never None in this class
    headers: Mapping[str, str] = _NO_HEADERS  # pyright: ignore[reportIncompatibleVariableOverride]  # never None
    retry_after: float | None = None
    """How many seconds to wait, from `Retry-After`, or None if the response does not say."""

    def _details(self) -> list[str]:
        wait = [] if self.retry_after is None else [f"retry after {self.retry_after:.0f} s"]
        return super()._details() + wait


class InvalidRequest(ApiError):
    """The request is not valid. The message names every invalid field."""


class Unauthorized(ApiError):
    """The API key is unknown, expired, suspended or revoked, or belongs to the other environment."""


class InsufficientScope(ApiError):
    """The API key does not have the scope that this operation requires."""


class NotFound(ApiError):
    """The path does not exist. Check the base URL."""


class PetNotFound(NotFound):
    """The animal does not exist."""


class Gone(ApiError):
    """The operation was removed."""


class RequestTimeout(ApiError):
    """The service did not receive the whole request in time, and `total_timeout` has passed."""


class IdempotencyMismatch(ApiError):
    """This idempotency key has already been used for a different animal."""


class RateLimited(ApiError):
    """The rate limit was exceeded, and waiting would exceed `total_timeout`."""

    limit: int | None = None
    """How many requests the exhausted window admits."""
    remaining: int | None = None
    """How many requests remain in that window."""
    reset: int | None = None
    """When that window resets, as a Unix timestamp on the service's clock."""
    window: str | None = None
    """The exhausted limit: `minute`, `day`, `ban`, or `address` for the limit of the client's address."""

    def _details(self) -> list[str]:
        return super()._details() + ([] if self.window is None else [f"limit: {self.window}"])


class KeyBanned(RateLimited):
    """The API key is temporarily banned because the client kept sending requests after a 429."""


class ServerError(ApiError):
    """The service returned a 5xx status, and did not recover before `total_timeout` had passed."""


class ClientClosed(PetstoreError):
    """The client is closed. The request was not sent, or an earlier attempt failed and was not repeated."""

    def __init__(self, message: str = "the client is closed", *, code: str = "client_closed", **more: Any) -> None:
        super().__init__(message, code=code, **more)


class ConnectionFailed(PetstoreError):
    """The service could not be reached, or the connection broke, until `total_timeout` had passed. See `__cause__`.

    Raised after 10 s if the service has never responded, and immediately for an invalid certificate.
    """


class TimedOut(PetstoreError):
    """No response arrived within `timeout`, or the request could not be sent, until `total_timeout` had passed."""


class UnexpectedResponse(PetstoreError):
    """The status indicates success, but the body is not what this API returns. Check the base URL."""

    status: int  # pyright: ignore[reportIncompatibleVariableOverride]  # never None in this class
    headers: Mapping[str, str] = _NO_HEADERS  # pyright: ignore[reportIncompatibleVariableOverride]  # never None


CLASSES: dict[str, type[ApiError]] = {
    "invalid_body": InvalidRequest,
    "invalid_parameter": InvalidRequest,
    "malformed_request": InvalidRequest,
    "body_too_large": InvalidRequest,
    "unsupported_media_type": InvalidRequest,
    "method_not_allowed": InvalidRequest,
    "unauthorized": Unauthorized,
    "insufficient_scope": InsufficientScope,
    "not_found": NotFound,
    "pet_not_found": PetNotFound,
    "gone": Gone,
    "request_timeout": RequestTimeout,
    "idempotency_mismatch": IdempotencyMismatch,
    "rate_limit_exceeded": RateLimited,
    "key_banned": KeyBanned,
    "internal_error": ServerError,
    "unavailable": ServerError,
}


def api_error(
    code: str,
    message: str,
    status: int,
    headers: Mapping[str, str] = _NO_HEADERS,
    retry_after: float | None = None,
    rate_limit: RateLimit | None = None,
) -> ApiError:
    """Returns the exception for an error response."""
    more: dict[str, Any] = {"headers": headers, "retry_after": retry_after}
    kind = _class_for(code, status)
    if rate_limit is not None and issubclass(kind, RateLimited):
        more |= msgspec.structs.asdict(rate_limit)
    return kind(message, code=code, status=status, request_id=headers.get("x-request-id"), **more)


def _class_for(code: str, status: int) -> type[ApiError]:
    # A retryable status determines the class regardless of the code, because the response might be from a proxy.
    # However, malformed_request always means InvalidRequest, because the service also sends this code with a 501 or
    # 505, and a retry would not help.
    if code == "malformed_request":
        return InvalidRequest
    if status == 429:
        return KeyBanned if code == "key_banned" else RateLimited
    if status == 408:
        return RequestTimeout
    return ServerError if status >= 500 else CLASSES.get(code, ApiError)


def _unpickle(kind: type[PetstoreError], values: dict[str, Any]) -> PetstoreError:
    return kind(**values)
