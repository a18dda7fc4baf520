"""Idempotency keys: retrying a create request does not add a second animal."""

import secrets

from petstore.verify.findings import Findings, expect, expect_status
from petstore.verify.session import Session, new_name, new_pet

PARALLEL = 6


def _new_header() -> str:
    return f"Idempotency-Key: verify-{secrets.token_hex(8)}"


def replay(session: Session) -> Findings:
    """Retrying a create request returns the original 201 with `Idempotent-Replayed: true`."""
    header, body = _new_header(), new_pet()
    first, again = session.post(body, header), session.post(body, header)
    yield from expect_status(first, 201)
    cause = "a proxy dropped `Idempotency-Key`"
    yield from expect((again.status, again.body) == (201, first.body), "the original 201", again, cause)
    if again.body == first.body:
        same = again.values("location") == first.values("location")
        yield from expect(same, f"`Location: {first.value('location')}`", again)
        right = again.values("idempotent-replayed") == ["true"]
        yield from expect(right, "`Idempotent-Replayed: true`", again, "a proxy removed `Idempotent-Replayed`")
        fresh = not first.values("idempotent-replayed")
        yield from expect(fresh, "no `Idempotent-Replayed`", first, "a proxy retries POST requests")


def parallel(session: Session) -> Findings:
    """If parallel create requests have the same idempotency key, one adds an animal, and the others return it."""
    headers = ("Content-Type: application/json", _new_header())
    end, name = session.list_end, new_name()
    body = new_pet(name=name, status=end.status if end else "available")
    responses = session.send_at_once(PARALLEL, "POST /pets", *headers, body=body)
    session.count_added(*responses)
    for response in responses:
        yield from expect_status(response, 201)
    other = next((each for each in responses if each.body != responses[0].body), responses[0])
    yield from expect(other is responses[0], f"the animal {responses[0].summary}", other,
                      "a proxy dropped `Idempotency-Key`")  # fmt: skip
    replayed = sum(each.values("idempotent-replayed") == ["true"] for each in responses)
    if other is responses[0]:
        expected = f"`Idempotent-Replayed: true` on {PARALLEL - 1} of {PARALLEL} responses, not on {replayed}"
        yield from expect(replayed == PARALLEL - 1, expected, responses[-1])
    if end:
        pages = session.newest()
        found = [pet for page in pages for pet in page.pets if pet.get("name") == name]
        yield from expect(len(found) == 1, f"one animal {name}, not {len(found)},", pages[-1])
