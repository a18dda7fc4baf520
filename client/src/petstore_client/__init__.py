"""The Petstore client: typed, sync and async, and it keeps the service's rules on waiting and retrying."""

from petstore_client._client import (
    LIVE,
    STAGING,
    AsyncPageIterator,
    AsyncPetIterator,
    AsyncPetstore,
    PageIterator,
    PetIterator,
    Petstore,
)
from petstore_client._errors import (
    ApiError,
    ConnectionFailed,
    Gone,
    IdempotencyConflict,
    IdempotencyMismatch,
    InsufficientScope,
    InvalidRequest,
    KeyBanned,
    NotFound,
    PetNotFound,
    PetstoreError,
    RateLimited,
    RequestTimeout,
    ServerError,
    TimedOut,
    Unauthorized,
    UnexpectedAnswer,
)
from petstore_client._models import Pet, PetStatus, RateLimit, Status
from petstore_client._tries import Try

__version__ = "0.1.0"

__all__ = [
    "LIVE",
    "STAGING",
    "ApiError",
    "AsyncPageIterator",
    "AsyncPetIterator",
    "AsyncPetstore",
    "ConnectionFailed",
    "Gone",
    "IdempotencyConflict",
    "IdempotencyMismatch",
    "InsufficientScope",
    "InvalidRequest",
    "KeyBanned",
    "NotFound",
    "PageIterator",
    "Pet",
    "PetIterator",
    "PetNotFound",
    "PetStatus",
    "Petstore",
    "PetstoreError",
    "RateLimit",
    "RateLimited",
    "RequestTimeout",
    "ServerError",
    "Status",
    "TimedOut",
    "Try",
    "Unauthorized",
    "UnexpectedAnswer",
    "__version__",
]
