"""The operations of the interface, one declaration each: routing, scopes, counting and documents follow from it."""

from typing import Literal, NamedTuple

from petstore.keys import Scope

OperationName = str  # `operationId` in the OpenAPI document, or OTHER


class Operation(NamedTuple):
    name: OperationName
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str  # below the base address
    scope: Scope  # that a key needs
    number: int  # never given to another operation: counts are stored in the order of the numbers
    deprecated: bool = False


OPERATIONS = (
    Operation("listPets", "GET", "/pets", scope="read", number=1),
    Operation("createPet", "POST", "/pets", scope="write", number=2),
    Operation("getPet", "GET", "/pets/{petId}", scope="read", number=3, deprecated=True),
)

OTHER: OperationName = "other"  # a request of a key that is none of them: a wrong path or method, OPTIONS. Number 0
# The name that a request is counted under, by number.
COUNTED: tuple[OperationName, ...] = (OTHER, *(each.name for each in sorted(OPERATIONS, key=lambda each: each.number)))
_deprecated = [each.name for each in OPERATIONS if each.deprecated]
if len(_deprecated) != 1:
    named = ", ".join(_deprecated) or "none"
    raise ValueError(f"the console has a page for one deprecated operation; the table has: {named}")
DEPRECATED: OperationName = _deprecated[0]  # the console shows which keys still call it
