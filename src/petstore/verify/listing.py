"""Lists of animals: format, length and parameters."""

from typing import Any

from petstore.pets import INT64_MAX, INT64_MIN, STATUSES
from petstore.verify.findings import Findings, Skip, expect, expect_error, expect_status
from petstore.verify.session import Session
from petstore.verify.transport import Response

MEMBERS = ["id", "name", "categoryId", "status"]
TOO_FEW = "there are fewer than two animals; add some, or use --write"
UNKNOWN = "offset=5&page=2&LIMIT=0&Status=x&limit[]=0&verify&&=&%FF=%00&"  # unknown parameters
INVALID = [
    ("limit", "limit=0"), ("limit", "limit=101"), ("limit", "limit=abc"), ("limit", "limit="), ("limit", "limit=%2B5"),
    ("limit", "limit=%EF%BC%95"), ("limit", "limit=5&limit=5"), ("status", "status=AVAILABLE"),
    ("status", "status=sold&status=sold"), ("cursor", "cursor=x"),
]  # fmt: skip


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
        found = {pet.get("status", status) for pet in response.pets}
        yield from expect(found <= {status}, f"only animals that are {status}", response)


def order(session: Session) -> Findings:
    """Animals are ordered by ascending id. Each has `id`, `name`, `categoryId` and `status`, in this order."""
    response = session.send("GET /pets?limit=100")
    yield from expect_status(response, 200)
    ids = [pet["id"] for pet in response.pets]
    yield from expect(ids == sorted(set(ids)), "ascending ids", response)
    right = all(list(pet)[: len(MEMBERS)] == MEMBERS for pet in response.pets)  # later versions may add members
    yield from expect(right, f"animals with the members {', '.join(MEMBERS)}", response)


def exact_length(session: Session) -> Findings:
    """If there are enough animals, a list contains exactly `limit` animals (20 by default)."""
    whole = session.send("GET /pets?limit=100").pets
    if len(whole) < 2:
        raise Skip(TOO_FEW)
    for query, length in (("", 20), ("?limit=1", 1), ("?limit=19", 19), ("?limit=99", 99)):
        part = session.send(f"GET /pets{query}")
        yield from expect(part.pets == whole[:length], f"the first {length} animals", part)


def status_complete(session: Session) -> Findings:
    """With `status`, a list includes every animal with that status."""
    whole = session.send("GET /pets?limit=100").pets
    for status in STATUSES:
        response = session.send(f"GET /pets?limit=100&status={status}")
        expected = [pet for pet in whole if pet.get("status") == status]
        yield from expect(response.pets[: len(expected)] == expected, f"all animals that are {status}", response)


def invalid_parameters(session: Session) -> Findings:
    """An invalid or repeated `limit`, `status` or `cursor` is rejected with a 400 `invalid_parameter` that names it."""
    for name, query in INVALID:
        response = session.send(f"GET /pets?{query}")
        yield from expect_error(response, 400, "invalid_parameter")
        yield from expect(name in response.message, f"a message that names {name}", response)


def every_parameter_named(session: Session) -> Findings:
    """If several parameters are invalid, one message names them all."""
    response = session.send("GET /pets?limit=0&status=lost&cursor=x")
    yield from expect_error(response, 400, "invalid_parameter")
    right = all(name in response.message for name in ("limit", "status", "cursor"))
    yield from expect(right, "a message that names limit, status and cursor", response)


def unknown_parameters(session: Session) -> Findings:
    """Unknown parameters are ignored."""
    plain, other = (session.send(f"GET /pets?{more}limit=2") for more in ("", UNKNOWN))
    yield from expect((other.status, other.body) == (200, plain.body), "an unchanged list", other)
