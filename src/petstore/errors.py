"""The exception hierarchy, and the error codes with their HTTP statuses.

PetstoreError
├── RequestError              the request fails, and the client receives the code and the message
│   ├── Unauthorized          ├── RateLimitExceeded     ├── KeyBanned
│   ├── InvalidBody           ├── InvalidParameter      ├── InsufficientScope
│   ├── PetNotFound           ├── NotFound              ├── MethodNotAllowed
│   ├── RequestTimeout        ├── IdempotencyMismatch   ├── Gone
│   ├── BodyTooLarge          ├── UnsupportedMediaType
│   └── InternalError (bug)   └── ServiceUnavailable (outage)
├── Unavailable               the store or the gate is unavailable; clients get ServiceUnavailable
│   └── DiskFull              a disk is full
└── OperatorError             an operator's command or setting is not valid; printed on one line, exit code 2
    ├── MissingPackage        an optional package is not installed
    └── Conflict              two operators changed the same values; defined in edits.py
"""

from typing import ClassVar

from petstore import __version__

# New codes may be added to this table, but the meaning and the status of a published code must not change.
STATUS_OF_CODE = {
    "invalid_body": 400,
    "invalid_parameter": 400,
    "unauthorized": 401,
    "insufficient_scope": 403,
    "pet_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "malformed_request": 400,  # or 414, 431, 501 or 505, depending on the cause
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
    """The base class of all Petstore exceptions."""


class RequestError(PetstoreError):
    """A request failed. The client receives an `Error` body and the given headers.

    `usual` is the default message or, for errors whose message depends on the request, an example.
    """

    code: ClassVar[str]
    usual: ClassVar[str]

    def __init__(self, message: str = "", headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.message = message or self.usual
        self.headers = headers
        super().__init__(self.message)


class Unauthorized(RequestError):
    code = "unauthorized"
    usual = "The API key is not valid."


class RateLimitExceeded(RequestError):
    code = "rate_limit_exceeded"
    usual = "Too many requests. Wait for the number of seconds in Retry-After."


class KeyBanned(RequestError):
    code = "key_banned"
    usual = (
        "This key is temporarily banned because too many consecutive requests were refused."
        " Wait for the number of seconds in Retry-After."
    )


class InvalidBody(RequestError):
    code = "invalid_body"
    usual = "The body is missing: send a JSON object with name and categoryId."


class InvalidParameter(RequestError):
    code = "invalid_parameter"
    usual = "limit must be a whole number from 1 to 100."


class InsufficientScope(RequestError):
    code = "insufficient_scope"
    usual = "This key does not have the write scope."


class PetNotFound(RequestError):
    code = "pet_not_found"
    usual = "There is no such animal."


class NotFound(RequestError):
    code = "not_found"
    usual = "There is nothing at this address."


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"
    usual = "This address supports only GET, HEAD, OPTIONS."


class RequestTimeout(RequestError):
    code = "request_timeout"
    usual = "The body did not arrive within 8 seconds."


class Gone(RequestError):
    code = "gone"
    usual = "This operation has been removed."


class BodyTooLarge(RequestError):
    code = "body_too_large"
    usual = "The body must not be larger than 65536 bytes."


class UnsupportedMediaType(RequestError):
    code = "unsupported_media_type"
    usual = "Content-Type must be application/json."


class IdempotencyMismatch(RequestError):
    code = "idempotency_mismatch"
    usual = "This Idempotency-Key was already used with a different body."


class InternalError(RequestError):
    code = "internal_error"
    usual = "Something went wrong."


class ServiceUnavailable(RequestError):
    code = "unavailable"
    usual = "The service is temporarily unavailable."


REQUEST_ERRORS = {each.code: each for each in RequestError.__subclasses__()}


class Unavailable(PetstoreError):
    """The store or the gate is unavailable. The message is for the log and is never sent to the client."""


class DiskFull(Unavailable):
    """A write failed because the disk or the disk quota is full. Reads still work.

    `place` is the directory or server whose disk is full.
    """

    def __init__(self, place: str, cause: object) -> None:
        self.place = place
        super().__init__(f"the disk used by {place} is full; free some space there ({cause})")


class OperatorError(PetstoreError):
    """A command failed or a setting is not valid. The message tells the operator why and what to do."""


class MissingPackage(OperatorError):
    """A feature requires an optional package that is not installed."""

    def __init__(self, feature: str, package: str | None, extra: str) -> None:
        # Suggest the wheel file, because a package called petstore in a public registry would not be ours.
        wheel = f"./petstore-{__version__}-py3-none-any.whl[{extra}]"
        super().__init__(f"{feature} requires the package {package}: pip install '{wheel}'")
