"""The tree of errors, and the list of error codes with their HTTP statuses.

PetstoreError
├── RequestError              the request is at fault; the client receives the code and the message
│   ├── Unauthorized          ├── RateLimitExceeded     ├── KeyBanned
│   ├── InvalidBody           ├── InvalidParameter      ├── InsufficientScope
│   ├── PetNotFound           ├── NotFound              ├── MethodNotAllowed
│   ├── RequestTimeout        ├── IdempotencyConflict   ├── IdempotencyMismatch
│   ├── Gone                  ├── BodyTooLarge          └── UnsupportedMediaType
├── Unavailable               the store or the gate cannot answer now; the client receives 503
└── OperatorError             an operator's command or setting is at fault; one line, exit code 2
    ├── ImportTaken           another process goes on with this import, or undoes it
    └── MissingPackage        an optional package is not installed
"""

from typing import ClassVar

# Append-only: a published code keeps its meaning and its status.
STATUS_OF_CODE = {
    "invalid_body": 400,
    "invalid_parameter": 400,
    "unauthorized": 401,
    "insufficient_scope": 403,
    "pet_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "malformed_request": 400,  # or 414, 431, 501, 505: the head could not be read
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


class Unauthorized(RequestError):
    code = "unauthorized"


class RateLimitExceeded(RequestError):
    code = "rate_limit_exceeded"


class KeyBanned(RequestError):
    code = "key_banned"


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
    """A command or a setting cannot be carried out. The text tells the operator why, and what to do."""


class ImportTaken(OperatorError):
    """Another process goes on with the import, or undoes it: this one adds nothing more."""


class MissingPackage(OperatorError):
    """A feature needs a package that only one of the extras installs."""

    def __init__(self, feature: str, package: str | None, extra: str) -> None:
        super().__init__(f"{feature} needs the package {package}: pip install 'petstore[{extra}]'")
