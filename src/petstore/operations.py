"""The operations of the interface, one row each: routing, scopes, counting, deprecation and documents follow."""

import math
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from petstore.keys import Scope

OperationName = str  # `operationId` in the OpenAPI document, or OTHER


class Deprecation(NamedTuple):
    """The announced end of an operation."""

    since: datetime
    sunset: datetime  # from then on, the operation responds with 410
    successor: str  # the path that replaces it, below the base address
    replacement: str  # the same in words, for messages and documents

    @property
    def sunset_day(self) -> str:
        return f"{self.sunset.day} {self.sunset:%B %Y}"


class Operation(NamedTuple):
    name: OperationName
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str  # below the base address
    scope: Scope  # that a key needs
    number: int  # never given to another operation: counts are stored in the order of the numbers
    deprecation: Deprecation | None = None

    @property
    def end(self) -> float:
        """The Unix time from which the operation no longer exists: infinity, unless it is deprecated."""
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

OTHER: OperationName = "other"  # a request of a key that is none of them: a wrong path or method, OPTIONS. Number 0
# The name that a request is counted under, by number.
COUNTED: tuple[OperationName, ...] = (OTHER, *(each.name for each in sorted(OPERATIONS, key=lambda each: each.number)))


def deprecated_operations() -> list[Operation]:
    return [each for each in OPERATIONS if each.deprecation is not None]


def end_of_items(collection: str) -> float:
    """The Unix time from which no operation gets one item of the collection at this path: 0 if none ever does."""
    return max(
        (each.end for each in OPERATIONS if each.method == "GET" and each.path.startswith(f"{collection}/{{")),
        default=0.0,
    )
