"""The kinds of write that the writer takes."""

import asyncio
from collections.abc import Callable
from typing import Any

import apsw

from petstore.store import Subject
from petstore.store.writing import AddPet


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
