"""Everything that can go wrong, once: the tree of errors and the closed list of codes.

PetstoreError
├── RequestError              the client's to mend; answered with its code
│   ├── InvalidBody           ├── InvalidParameter      ├── InsufficientScope
│   ├── PetNotFound           ├── NotFound              ├── MethodNotAllowed
│   ├── RequestTimeout        ├── IdempotencyConflict   ├── IdempotencyMismatch
│   ├── Gone                  ├── BodyTooLarge          └── UnsupportedMediaType
├── Unavailable               the store or the gate cannot answer now; it heals by itself
└── OperatorError             the operator's to mend; one line on the command line, exit code 2

401 and 429 are no errors on the way: they are what the door says, and are answered there.
"""

from typing import ClassVar

# Append-only: a code, once published, keeps its meaning and its status.
STATUS_OF_CODE = {
    "invalid_body": 400,
    "invalid_parameter": 400,
    "unauthorized": 401,
    "insufficient_scope": 403,
    "pet_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "idempotency_conflict": 409,
    "gone": 410,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "idempotency_mismatch": 422,
    "rate_limit_exceeded": 429,
    "key_banned": 429,
    "internal_error": 500,
    "unavailable": 503,
}


class PetstoreError(Exception):
    """Root of the tree."""


class RequestError(PetstoreError):
    """A request that is answered with an `Error` body. `headers` go out with it."""

    code: ClassVar[str]

    def __init__(self, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.headers = headers


class InvalidBody(RequestError):
    code = "invalid_body"


class InvalidParameter(RequestError):
    code = "invalid_parameter"


class InsufficientScope(RequestError):
    code = "insufficient_scope"


class PetNotFound(RequestError):
    code = "pet_not_found"


class NotFound(RequestError):
    code = "not_found"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"


class RequestTimeout(RequestError):
    code = "request_timeout"


class IdempotencyConflict(RequestError):
    code = "idempotency_conflict"


class Gone(RequestError):
    code = "gone"


class BodyTooLarge(RequestError):
    code = "body_too_large"


class UnsupportedMediaType(RequestError):
    code = "unsupported_media_type"


class IdempotencyMismatch(RequestError):
    code = "idempotency_mismatch"


class Unavailable(PetstoreError):
    """The store or the gate cannot answer now. The text is for the log, never for the client."""


class OperatorError(PetstoreError):
    """What the operator asked for cannot be done; the text says why and what to do."""


def to_install(extra: str) -> str:
    """The words that bring an optional part of this project along, for messages about a package that is missing."""
    return f"pip install 'petstore[{extra}]'"
