"""What the writer is given to write, and until when each may be begun."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import apsw

from petstore.errors import PetstoreError
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store import Subject


class Add:
    """An animal to be added."""

    __slots__ = ("due", "future", "idempotency_key", "new", "now", "result")
    alone = False

    def __init__(
        self,
        future: "asyncio.Future[Added]",
        due: float,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None,
    ) -> None:
        self.future = future
        self.due = due
        self.new = new
        self.now = now
        self.idempotency_key = idempotency_key
        self.result: Added | PetstoreError | None = None


class Call:
    """Any other write: a function of the connection, inside the transaction."""

    __slots__ = ("alone", "changes", "due", "future", "result", "work")

    def __init__(
        self,
        future: "asyncio.Future[Any]",
        due: float,
        work: Callable[[apsw.Connection], Any],
        changes: Subject | None,
        *,
        alone: bool,
    ) -> None:
        self.future = future
        self.due = due
        self.alone = alone
        self.work = work
        self.changes = changes
        self.result: Any = None


Jobs = list[Add | Call]


def timely_of(batch: Jobs) -> Jobs:
    """Without those that are overdue, or given up."""
    now = time.monotonic()
    return [job for job in batch if now < job.due and not job.future.done()]
