"""The kinds of write that the writer takes."""

import asyncio
from collections.abc import Callable
from typing import Any

import apsw

from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store import Subject


class AddPet:
    """A new animal. After `due`, by the writer's clock, it is no longer written."""

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
        self.result: Added | Exception | None = None


class Call:
    """A function of the connection, which runs inside a transaction; `alone`: with no other write in it."""

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


Write = AddPet | Call
