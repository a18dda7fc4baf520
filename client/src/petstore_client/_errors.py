"""Everything that a call can raise, and which code of the service becomes which class.

PetstoreError
├── ApiError                  the service answered, and the answer is an error
│   ├── InvalidRequest        invalid_body, invalid_parameter, body_too_large, unsupported_media_type,
│   │                         method_not_allowed
│   ├── Unauthorized          unauthorized
│   ├── InsufficientScope     insufficient_scope
│   ├── NotFound              not_found
│   │   └── PetNotFound       pet_not_found
│   ├── Gone                  gone
│   ├── RequestTimeout        request_timeout, and every other 408
│   ├── IdempotencyConflict   idempotency_conflict
│   ├── IdempotencyMismatch   idempotency_mismatch
│   ├── RateLimited           rate_limit_exceeded, and every other 429
│   │   └── KeyBanned         key_banned
│   └── ServerError           internal_error, unavailable, and every other 5xx
├── ConnectionFailed          no answer: the service could not be reached, or the connection broke
├── TimedOut                  no answer within the time
└── UnexpectedAnswer          a success, but not one of this interface
"""

from typing import Any, Self

from petstore_client._models import RateLimit


class PetstoreError(Exception):
    """The root of all that a call raises."""

    code: str
    """Machine-readable: the service's own code, or one of this client's where there was no answer."""
    message: str
    """For people."""
    status: int | None
    """The HTTP status, or None where there was no answer."""
    request_id: str | None
    """What the service calls the request in its log; quote it when asking for help."""

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
        known = [self.code]
        if self.status is not None:
            known.append(f"status {self.status}")
        if self.request_id is not None:
            known.append(f"request {self.request_id}")
        return f"{self.message} ({', '.join(known)})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions travel between processes, and by default they forget their keyword arguments on the way.
        return _remade, (type(self), self.__dict__)

    def replace(self, **changes: Any) -> Self:
        """A new error like this one, without its traceback."""
        return type(self)(**(self.__dict__ | changes))


class ApiError(PetstoreError):
    """The service answered with an error. A code that this version does not know arrives as this class."""

    status: int
    retry_after: float | None = None
    """How many seconds the service asks to wait, or None if it does not say."""


class InvalidRequest(ApiError):
    """The request breaks a rule; the message names every field at fault."""


class Unauthorized(ApiError):
    """The API key is missing, unknown, expired or revoked, or belongs to the other environment."""


class InsufficientScope(ApiError):
    """The API key may not do this."""


class NotFound(ApiError):
    """There is nothing at this address: is the base URL right?"""


class PetNotFound(NotFound):
    """There is no such animal."""


class Gone(ApiError):
    """The operation was removed."""


class RequestTimeout(ApiError):
    """The request took too long to arrive, and no try is left."""


class IdempotencyConflict(ApiError):
    """The first request with this idempotency key is still running, and no try is left."""


class IdempotencyMismatch(ApiError):
    """This idempotency key was used before, for another animal."""


class RateLimited(ApiError):
    """The rate limit is exceeded, and waiting would take longer than `max_wait`, or no try is left."""

    limit: int | None = None
    """How many requests the exhausted window admits."""
    remaining: int | None = None
    """How many of them are left."""
    reset: int | None = None
    """When the window resets: a Unix timestamp, by the service's clock."""


class KeyBanned(RateLimited):
    """The API key is banned for a while, because requests kept coming after a refusal."""


class ServerError(ApiError):
    """Something went wrong on the service's side, and no try is left."""


class ConnectionFailed(PetstoreError):
    """The service could not be reached, or the connection broke, and no try is left. The cause is in `__cause__`."""


class TimedOut(PetstoreError):
    """There was no answer within `timeout`, and no try is left. The cause is in `__cause__`."""


class UnexpectedAnswer(PetstoreError):
    """The answer is a success, but its body is not what this interface promises: is the base URL right?"""

    status: int


CLASSES: dict[str, type[ApiError]] = {
    "invalid_body": InvalidRequest,
    "invalid_parameter": InvalidRequest,
    "body_too_large": InvalidRequest,
    "unsupported_media_type": InvalidRequest,
    "method_not_allowed": InvalidRequest,
    "unauthorized": Unauthorized,
    "insufficient_scope": InsufficientScope,
    "not_found": NotFound,
    "pet_not_found": PetNotFound,
    "gone": Gone,
    "request_timeout": RequestTimeout,
    "idempotency_conflict": IdempotencyConflict,
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
    request_id: str | None = None,
    retry_after: float | None = None,
    rate_limit: RateLimit | None = None,
) -> ApiError:
    """The error that an answer stands for."""
    more: dict[str, Any] = {"retry_after": retry_after}
    kind = _class_for(code, status)
    if rate_limit is not None and issubclass(kind, RateLimited):
        more |= {"limit": rate_limit.limit, "remaining": rate_limit.remaining, "reset": rate_limit.reset}
    return kind(message, code=code, status=status, request_id=request_id, **more)


def _class_for(code: str, status: int) -> type[ApiError]:
    # Where the status calls for another try, it decides: whatever stands between us may answer in codes of its own.
    if status == 429:
        return KeyBanned if code == "key_banned" else RateLimited
    if status == 408:
        return RequestTimeout
    return ServerError if status >= 500 else CLASSES.get(code, ApiError)


def _remade(kind: type[PetstoreError], values: dict[str, Any]) -> PetstoreError:
    return kind(**values)
