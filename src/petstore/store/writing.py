"""Code shared by both backends' writers: queued create requests, idempotent replays, and delivery of results."""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from petstore.errors import IdempotencyMismatch, PetstoreError, Unavailable
from petstore.observability.logs import logger
from petstore.pets import Added, IdempotencyKey, NewPet, Pet
from petstore.store.schema import new_pet_row


@dataclass(slots=True, eq=False)
class AddPet:
    """A queued request to add an animal."""

    future: "asyncio.Future[Added]"
    deadline: float  # a time on the writer's clock
    new: NewPet
    now: float
    idempotency_key: IdempotencyKey | None
    key_id: str  # the id of the API key that adds the animal
    result: Added | Exception | None = None
    alone: ClassVar[bool] = False  # can share a transaction with other writes


def newly_added(new: NewPet, pet_id: int) -> Added:
    return Added(Pet(pet_id, *new_pet_row(new)), replayed=False)


# Idempotency records by name. Each contains the digest of the first request's body and the animal that was added.
Records = dict[tuple[str, str], tuple[bytes, Pet]]


def first_uses(batch: Iterable[AddPet], recorded: Collection[tuple[str, str]] = ()) -> list[AddPet]:
    """Returns the requests whose animals must be added.

    These are all requests without an idempotency key, and the first request for each key that has no record yet.
    """
    used = set(recorded)
    first = []
    for add in batch:
        if add.idempotency_key is not None:
            name = add.idempotency_key.name
            if name in used:
                continue
            used.add(name)
        first.append(add)
    return first


def new_records(written: Iterable[AddPet]) -> Records:
    return {
        key.name: (key.body_digest, add.result.pet)
        for add in written
        if (key := add.idempotency_key) and isinstance(add.result, Added)
    }


def replay(batch: Iterable[AddPet], records: Records) -> None:
    """Sets the result of each request that added no animal because its idempotency key had already been used."""
    for add in batch:
        if add.result is None and add.idempotency_key is not None:
            add.result = _replayed(add.idempotency_key, records)


def _replayed(key: IdempotencyKey, records: Records) -> Added | PetstoreError:
    if key.name not in records:  # another node has just pruned the record; a retry will add the animal
        return Unavailable("an idempotency record was pruned")
    digest, pet = records[key.name]
    return Added(pet, replayed=True) if digest == key.body_digest else IdempotencyMismatch()


def deliver(results: Iterable[tuple["asyncio.Future[Any]", Any]]) -> None:
    """Sets each result or exception on its future, unless the caller has stopped waiting.

    Any exception other than a PetstoreError is a bug. A caller that receives one logs it with the request id. If no
    caller is waiting for it, this function logs it.
    """
    bugs: dict[Exception, bool] = {}  # maps each bug to whether a caller received it
    for future, result in results:
        is_waiting = not future.done()
        if isinstance(result, Exception):
            if not isinstance(result, PetstoreError):
                bugs[result] = bugs.get(result, False) or is_waiting
            if is_waiting:
                future.set_exception(result)
        elif is_waiting:
            future.set_result(result)
    for bug, reached in bugs.items():
        if not reached:
            log_bug(bug)


def log_bug(error: BaseException) -> None:
    logger.error("internal error", exc_info=error, extra={"fields": {"part": "store"}})
