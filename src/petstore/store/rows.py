"""Rows and what they stand for, the same in every store; and the promises that are being kept right now."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap
from typing import Any

import msgspec

from petstore.errors import IdempotencyConflict
from petstore.keys import ApiKey, Environment
from petstore.pets import Once, Pet

KEY = "k.id, k.name, k.plan, k.per_minute, k.per_day, k.scopes, k.created, k.expires, k.revoked, k.last_used"


def pets_of(rows: Sequence[Sequence[Any]]) -> list[Pet]:
    return list(starmap(Pet, rows))


def key_of(environment: Environment, row: Sequence[Any]) -> ApiKey:
    """From the columns of `KEY`."""
    key_id, name, plan, per_minute, per_day, scopes, created, expires, revoked, last_used = row
    return ApiKey(
        id=key_id, name=name, environment=environment, plan=plan, per_minute=per_minute, per_day=per_day,
        scopes=tuple(scopes.split()), created=created, expires=expires, revoked=revoked, last_used=last_used,
    )  # fmt: skip


def key_of_secret(environment: Environment, row: Sequence[Any]) -> ApiKey:
    """From the columns of `KEY` and when the secret expires: the key ends with whichever is sooner."""
    *columns, until = row
    key = key_of(environment, columns)
    if until is None or (key.expires is not None and key.expires <= until):
        return key
    return msgspec.structs.replace(key, expires=until)


def row_of(key: ApiKey) -> tuple[Any, ...]:
    return (
        key.id, key.name, key.plan, key.per_minute, key.per_day, " ".join(key.scopes),
        key.created, key.expires, key.revoked, key.last_used,
    )  # fmt: skip


class InHand:
    """The idempotency keys whose first request is not answered yet."""

    def __init__(self) -> None:
        self._names: set[tuple[str, str]] = set()

    @contextmanager
    def only(self, once: Once) -> Iterator[None]:
        """Raises IdempotencyConflict when it is in hand already."""
        name = (once.key_id, once.token)
        if name in self._names:
            raise IdempotencyConflict("The first request with this Idempotency-Key is still running; retry shortly.")
        self._names.add(name)
        try:
            yield
        finally:
            self._names.discard(name)
