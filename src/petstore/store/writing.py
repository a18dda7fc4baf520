"""What the writers of both backends share: new animals, replays, and handing out results."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from petstore.errors import IdempotencyMismatch, PetstoreError
from petstore.observability.logs import logger
from petstore.pets import Added, IdempotencyKey, NewPet, Pet
from petstore.store.schema import new_pet_row


@dataclass(slots=True, eq=False)
class AddPet:
    """A new animal for a writer. After `due`, by the writer's clock, it is no longer written."""

    future: "asyncio.Future[Added]"
    due: float
    new: NewPet
    now: float
    idempotency_key: IdempotencyKey | None
    result: Added | Exception | None = None
    alone: ClassVar[bool] = False  # it shares a transaction with others


def added(new: NewPet, pet_id: int) -> Added:
    return Added(Pet(pet_id, *new_pet_row(new)), replayed=False)


def replayed(idempotency_key: IdempotencyKey, digest: bytes, pet: Pet) -> Added | IdempotencyMismatch:
    """The answer to a request whose idempotency key was used before, for `pet` and with a body of this digest."""
    if digest == idempotency_key.body_digest:
        return Added(pet, replayed=True)
    return IdempotencyMismatch()


def deliver(results: Iterable[tuple["asyncio.Future[Any]", Any]]) -> None:
    """Hand each result, or exception, to the future that waits for it, unless its caller has gone.

    Each caller logs a bug that reaches it, under its own request id. A bug that reaches no caller is logged here.
    """
    bugs: dict[Exception, bool] = {}  # and whether it reached someone
    for future, result in results:
        waits = not future.done()
        if isinstance(result, Exception):
            if not isinstance(result, PetstoreError):
                bugs[result] = bugs.get(result, False) or waits
            if waits:
                future.set_exception(result)
        elif waits:
            future.set_result(result)
    for bug, reached in bugs.items():
        if not reached:
            log_bug(bug)


def log_bug(error: BaseException) -> None:
    logger.error("internal error", exc_info=error, extra={"fields": {"part": "store"}})
