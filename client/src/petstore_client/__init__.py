"""Typed synchronous and asyncio clients for Petstore. Both honour `Retry-After` and retry failed requests."""

from petstore_client._async_client import AsyncPetstore
from petstore_client._base_client import NOT_GIVEN, NotGiven
from petstore_client._client import PageIterator, PetIterator, Petstore, PetstoreWithRawResponse
from petstore_client._errors import (
    ApiError,
    ClientClosed,
    ConnectionFailed,
    Gone,
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
    UnexpectedResponse,
)
from petstore_client._events import Attempt, Wait
from petstore_client._models import Page, Pet, PetStatus, RateLimit, Status
from petstore_client._operations import AsyncPetstoreWithRawResponse
from petstore_client._pages import AsyncPageIterator, AsyncPetIterator
from petstore_client._responses import RawResponse

__version__ = "1.0.0"

__all__ = [
    "NOT_GIVEN",
    "ApiError",
    "AsyncPageIterator",
    "AsyncPetIterator",
    "AsyncPetstore",
    "AsyncPetstoreWithRawResponse",
    "Attempt",
    "ClientClosed",
    "ConnectionFailed",
    "Gone",
    "IdempotencyMismatch",
    "InsufficientScope",
    "InvalidRequest",
    "KeyBanned",
    "NotFound",
    "NotGiven",
    "Page",
    "PageIterator",
    "Pet",
    "PetIterator",
    "PetNotFound",
    "PetStatus",
    "Petstore",
    "PetstoreError",
    "PetstoreWithRawResponse",
    "RateLimit",
    "RateLimited",
    "RawResponse",
    "RequestTimeout",
    "ServerError",
    "Status",
    "TimedOut",
    "Unauthorized",
    "UnexpectedResponse",
    "Wait",
    "__version__",
]
