"""New animals: what is stored, and when new animals appear in lists."""

import json
from contextlib import ExitStack
from typing import Any

from petstore.operations import end_of_items
from petstore.pets import INT64_MAX, STATUSES
from petstore.verify.findings import Findings, expect, expect_error, expect_status, unexpected
from petstore.verify.responses import Response
from petstore.verify.session import Session, new_name

CONNECTIONS = 8  # enough connections to reach every worker of a small deployment
INVALID_VALUES: list[dict[str, Any]] = [
    {"name": 1}, {"name": None}, {"categoryId": "1"}, {"categoryId": 1.5}, {"categoryId": True}, {"status": "lost"},
]  # fmt: skip


def created(session: Session) -> Findings:
    """Adding an animal returns 201 with the values that were sent and the assigned `id`."""
    for status in STATUSES:
        sent: dict[str, Any] = {"name": new_name(), "categoryId": 7, "status": status}
        response = session.add(**sent)
        right = response.status == 201 and {**response.pet, **sent} == response.pet
        yield from expect(right, f"201 and the animal {sent['name']} with its id", response)


def status_optional(session: Session) -> Findings:
    """`status` may be omitted."""
    yield from expect_status(session.add(), 201)


def fetched(session: Session) -> Findings:
    """A new animal can be fetched by its id immediately."""
    response = session.add()
    yield from expect_status(response, 201)
    if response.pet:
        again = session.send(f"GET /pets/{response.pet['id']}")
        if again.status != 410:
            yield from expect((again.status, again.json) == (200, response.json), "the new animal", again)


def missing_fields(session: Session) -> Findings:
    """A body without `name` or `categoryId` is rejected with 400 and an `Error` body."""
    for body in ({}, {"name": new_name()}, {"categoryId": 1}):
        yield from expect_error(session.post(json.dumps(body).encode()), 400)


def invalid_values(session: Session) -> Findings:
    """A value of the wrong type or an unknown `status` is rejected with 400 and an `Error` body."""
    for members in INVALID_VALUES:
        yield from expect_error(session.add(**members), 400)


def stored_as_sent(session: Session) -> Findings:
    """Names and numbers are stored as sent."""
    sent: dict[str, Any] = {
        "name": f"{new_name()}  \N{DOG FACE} e\N{COMBINING ACUTE ACCENT} <&> ",
        "categoryId": INT64_MAX,
    }
    response = session.add(**sent)
    right = response.status == 201 and {**response.pet, **sent} == response.pet
    yield from expect(right, f"201 and {sent}", response, "a proxy rewrites bodies")


def location(session: Session) -> Findings:
    """Until `GET /pets/{petId}` is removed, the `Location` header of a 201 points to the new animal."""
    response = session.add()
    yield from expect_status(response, 201)
    if response.pet and response.date < end_of_items("/pets"):
        target = f"{session.addresses[0].path}/pets/{response.pet['id']}"
        cause = "a proxy changes the path; set --public-url or --staging-url"
        yield from expect(response.value("location").endswith(target), f"`Location: …{target}`", response, cause)


def added_once(session: Session) -> Findings:
    """One create request adds exactly one animal."""
    name, status = new_name(), session.end_of_list().status
    response = session.add(name=name, status=status)
    yield from expect_status(response, 201)
    pages = session.newest()
    ids = [pet["id"] for page in pages for pet in page.pets if pet.get("name") == name]
    cause = "a proxy retries POST requests" if len(ids) > 1 else ""
    yield from expect(len(ids) == 1, f"one animal with the name {name}, not {len(ids)}", pages[-1], cause)


def visible_at_once(session: Session) -> Findings:
    """A new animal appears in the next list, regardless of which worker responds."""
    session.newest()
    end = session.end_of_list()
    name, line = new_name(), f"GET /pets?{end.query}"
    with ExitStack() as stack:
        connections = [stack.enter_context(session.connect()) for _ in range(CONNECTIONS)]

        def read_all() -> list[Response]:
            responses = []
            for connection in connections:
                connection.write(session.message(line))
                responses.append(session.read(connection, line))
            return responses

        read_all()
        added = session.add(name=name, status=end.status)
        yield from expect_status(added, 201)
        stale = [page for page in read_all() if not _has(page, name) and not session.next_page(page)]
    if 0 < len(stale) < CONNECTIONS:
        cause = f"a worker serves stale pages: {len(stale)} of {CONNECTIONS} connections got the old list"
        yield unexpected(f"a list with {name}", stale[0], cause)
    elif stale:
        yield unexpected(f"a list with {name}", stale[0], "a cache in front of the service, or a stale cached page")


def _has(page: Response, name: str) -> bool:
    return any(pet.get("name") == name for pet in page.pets)
