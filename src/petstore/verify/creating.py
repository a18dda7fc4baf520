"""New animals: which bodies are valid, what is stored, and when new animals appear in lists."""

import json
from contextlib import ExitStack
from typing import Any

from petstore.operations import end_of_items
from petstore.pets import INT64_MAX, STATUSES
from petstore.verify.findings import Findings, expect, expect_error, expect_status, unexpected
from petstore.verify.session import Session, new_name, new_pet
from petstore.verify.transport import Response

CONNECTIONS = 8  # enough connections to reach every worker of a small deployment
INVALID_VALUES: list[dict[str, Any]] = [
    {"name": 1}, {"name": None}, {"categoryId": "1"}, {"categoryId": 1.5}, {"categoryId": True}, {"status": "lost"},
]  # fmt: skip
FORBIDDEN_VALUES: list[dict[str, Any]] = [
    {"name": ""}, {"name": "   "}, {"name": "verify-" + "x" * 249}, {"name": "verify-\x00"}, {"status": None},
    {"categoryId": INT64_MAX + 1},
]  # fmt: skip
IGNORED: dict[str, Any] = {"id": 9_000_000_000, "ID": 5, "Status": "lost", "owner": {"name": [1, None]}}
MALFORMED = [
    b"", b"[]", b"null", b'{"name": "verify-', b'{"name":"verify-1","categoryId":1} x',
    b'{"name":"verify-1","categoryId":NaN}', b'{"name":"verify-1","name":"verify-2","categoryId":1}',
    b'{"name":"verify-\xff","categoryId":1}', b'{"name":"verify-\\ud800","categoryId":1}',
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


def forbidden_values(session: Session) -> Findings:
    """An invalid name, an explicit `null` or a number outside the int64 range is rejected with 400 `invalid_body`."""
    for members in FORBIDDEN_VALUES:
        yield from expect_error(session.add(**members), 400, "invalid_body")


def malformed_bodies(session: Session) -> Findings:
    """A body that is not a JSON object in UTF-8, or has duplicate members, is rejected with 400 `invalid_body`."""
    for body in MALFORMED:
        yield from expect_error(session.post(body), 400, "invalid_body")


def every_field_named(session: Session) -> Findings:
    """If several fields are invalid, one message names them all."""
    response = session.post(b'{"name":1,"categoryId":"1","status":"lost"}')
    right = all(name in response.message for name in ("name", "categoryId", "status"))
    yield from expect(right, "a message that names name, categoryId and status", response)


def position_named(session: Session) -> Findings:
    """If a body is not valid JSON, the error message gives the position of the error."""
    response = session.post(b'{"name": "verify-1",\n "categoryId": }')
    yield from expect_error(response, 400, "invalid_body")
    yield from expect("line 2, column 16" in response.message, "a message that says line 2, column 16", response)


def stored_as_sent(session: Session) -> Findings:
    """Names and numbers are stored as sent. `id` and unknown members are ignored. `status` defaults to `available`."""
    name = f"{new_name()}  \N{DOG FACE} e\N{COMBINING ACUTE ACCENT} <&> "
    response = session.add(name=name, categoryId=INT64_MAX, **IGNORED)
    pet = response.pet
    expected = {"id": pet.get("id"), "name": name, "categoryId": INT64_MAX, "status": "available"}
    same = list(pet.items())[: len(expected)] == list(expected.items())  # later versions may add members
    right = response.status == 201 and same and pet["id"] != IGNORED["id"]
    yield from expect(right, f"201 and {expected}", response)


def location(session: Session) -> Findings:
    """Until `GET /pets/{petId}` is removed, the `Location` header of a 201 points to the new animal."""
    response = session.add()
    yield from expect_status(response, 201)
    if response.pet and response.date < end_of_items("/pets"):
        target = f"{session.addresses[0].path}/pets/{response.pet['id']}"
        cause = "a proxy changes the path; set --public-url or --staging-url"
        yield from expect(response.value("location").endswith(target), f"`Location: …{target}`", response, cause)


def media_types(session: Session) -> Findings:
    """A body that has a `Content-Encoding` or is not `application/json` is rejected with 415."""
    for header in ("Content-Type: text/plain", "Content-Encoding: gzip"):
        response = session.send("POST /pets", header, body=new_pet())
        session.count_added(response)
        yield from expect_error(response, 415, "unsupported_media_type")


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
