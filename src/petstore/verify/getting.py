"""The deprecated operation that gets one animal by its id."""

from email.utils import format_datetime
from urllib.parse import urljoin

from petstore.operations import Operation, deprecated_operations
from petstore.verify.findings import Findings, Skip, expect, expect_error
from petstore.verify.responses import Response, link_target
from petstore.verify.session import Session
from petstore.verify.transport import Address

UNKNOWN = "9223372036854775807"  # the highest possible id; no animal has it


def _send(session: Session, pet_id: object) -> Response:
    """Requests an animal. Raises Skip if the operation has been removed."""
    response = session.send(f"GET /pets/{pet_id}")
    if response.status == 410:
        raise Skip("the operation has been removed")
    return response


def found(session: Session) -> Findings:
    """A listed animal can be fetched by its id."""
    pets = session.send("GET /pets?limit=1").pets
    if not pets:
        raise Skip("there are no animals; add one, or use --write")
    response = _send(session, pets[0]["id"])
    same = list(response.pet.items()) == list(pets[0].items())
    yield from expect(response.status == 200 and same, f"200 and {pets[0]}", response)


def unknown(session: Session) -> Findings:
    """A request for an unknown id is rejected with 404 and an `Error` body."""
    yield from expect_error(_send(session, UNKNOWN), 404)


def deprecation(session: Session) -> Findings:
    """Deprecated operations return `Deprecation`, `Sunset`, and links to their replacement and the documentation."""
    known = [str(pet["id"]) for pet in session.send("GET /pets?limit=1").pets]
    for operation in deprecated_operations():
        for pet_id in (UNKNOWN, *known):
            response = session.send(f"{operation.method} {operation.path.replace('{petId}', pet_id)}")
            for name, value in _deprecation_headers(operation):
                yield from expect(response.values(name) == [value], f"`{name}: {value}`", response)
            for relation, target in _deprecation_links(operation, session.addresses[0]).items():
                found = link_target(response, relation)
                yield from expect(found == target, f"a `Link` to {target} as {relation}", response)


def _deprecation_headers(operation: Operation) -> list[tuple[str, str]]:
    assert operation.deprecation is not None
    since, sunset = operation.deprecation.since, operation.deprecation.sunset
    return [("Deprecation", f"@{since.timestamp():.0f}"), ("Sunset", format_datetime(sunset, usegmt=True))]


def _deprecation_links(operation: Operation, address: Address) -> dict[str, str]:
    assert operation.deprecation is not None
    return {
        "successor-version": f"{address.url}{operation.deprecation.successor}",
        "deprecation": urljoin(address.url, "/docs"),
    }
