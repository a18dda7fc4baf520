"""Lists of animals: format, length and status."""

from typing import Any

from petstore.pets import INT64_MAX, INT64_MIN, STATUSES
from petstore.verify.findings import Findings, expect
from petstore.verify.responses import Response
from petstore.verify.session import Session

TOO_FEW = "there are fewer than two animals; add some, or use --write"


def is_pet(value: Any) -> bool:
    """Whether the value is an animal according to the specification."""
    return (
        isinstance(value, dict)
        and _is_int64(value.get("id"))
        and isinstance(value.get("name"), str)
        and _is_int64(value.get("categoryId"))
        and value.get("status", STATUSES[0]) in STATUSES
    )


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and INT64_MIN <= value <= INT64_MAX


def expect_list(response: Response, most: int) -> Findings:
    pets = response.json
    kind = response.value("content-type").partition(";")[0].strip().lower()
    right = response.status == 200 and isinstance(pets, list) and all(map(is_pet, pets)) and kind == "application/json"
    yield from expect(right, "200 and a JSON array of animals", response)
    if right:
        yield from expect(len(pets) <= most, f"at most {most} animals", response)


def array(session: Session) -> Findings:
    """Without `limit`, a list is a JSON array of at most 20 animals."""
    yield from expect_list(session.send("GET /pets"), 20)


def limit(session: Session) -> Findings:
    """A list contains at most `limit` animals."""
    for most in (2, 100):
        yield from expect_list(session.send(f"GET /pets?limit={most}"), most)


def limit_maximum(session: Session) -> Findings:
    """No list contains more than 100 animals."""
    response = session.send("GET /pets?limit=1000")
    yield from expect(len(response.pets) <= 100, "at most 100 animals", response)


def status_filter(session: Session) -> Findings:
    """With `status`, a list contains only animals with that status."""
    for status in STATUSES:
        response = session.send(f"GET /pets?status={status}")
        yield from expect_list(response, 20)
        right = all(pet.get("status", status) == status for pet in response.pets)
        yield from expect(right, f"only animals that are {status}", response)
