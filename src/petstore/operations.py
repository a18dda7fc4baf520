"""The API's operations. Routing, scopes, usage, deprecation and the OpenAPI document are based on this table."""

import math
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from petstore.keys import Scope

OperationName = str  # an `operationId` in the OpenAPI document, or OTHER


class Deprecation(NamedTuple):
    """When a deprecated operation will be removed, and what replaces it."""

    since: datetime
    sunset: datetime  # from this time on, the operation returns 410
    successor: str  # the path of the replacement, relative to the base address
    replacement: str  # a description of the replacement for messages and documents

    @property
    def sunset_day(self) -> str:
        return f"{self.sunset.day} {self.sunset:%B %Y}"


class Operation(NamedTuple):
    name: OperationName
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str  # relative to the base address
    scope: Scope  # the scope that a key must have
    number: int  # identifies the operation in stored counters, so it must never be reused
    deprecation: Deprecation | None = None

    @property
    def end(self) -> float:
        """Returns the Unix time of the sunset, or infinity if the operation is not deprecated."""
        return self.deprecation.sunset.timestamp() if self.deprecation else math.inf


OPERATIONS = (
    Operation("listPets", "GET", "/pets", scope="read", number=1),
    Operation("createPet", "POST", "/pets", scope="write", number=2),
    Operation(
        "getPet", "GET", "/pets/{petId}", scope="read", number=3,
        deprecation=Deprecation(
            since=datetime(2026, 11, 14, tzinfo=UTC),
            sunset=datetime(2030, 12, 5, tzinfo=UTC),
            successor="/pets",
            replacement="GET /pets with a status filter",
        ),
    ),
)  # fmt: skip

# Requests that match no operation, such as OPTIONS requests and requests with an unknown path or an unsupported method,
# are counted as this operation, whose number is 0.
OTHER: OperationName = "other"
# The names under which requests are counted, sorted by operation number.
COUNTED: tuple[OperationName, ...] = (OTHER, *(each.name for each in sorted(OPERATIONS, key=lambda each: each.number)))


def deprecated_operations() -> list[Operation]:
    return [each for each in OPERATIONS if each.deprecation is not None]


def allowed_methods(path: str) -> set[str]:
    """Returns the methods to list in the `Allow` header for an operation's path."""
    methods = {"OPTIONS", *(each.method for each in OPERATIONS if each.path == path)}
    return methods | {"HEAD"} if "GET" in methods else methods


def end_of_items(collection: str) -> float:
    """Returns the Unix time from which the API no longer returns individual items of this collection.

    Returns infinity if this has not been announced, and 0 if no operation returns individual items.
    """
    return max(
        (each.end for each in OPERATIONS if each.method == "GET" and each.path.startswith(f"{collection}/{{")),
        default=0.0,
    )
