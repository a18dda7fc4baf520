"""The kinds of write that the writer takes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import apsw

from petstore.store import Subject
from petstore.store.writing import AddPet


@dataclass(slots=True, eq=False)
class Call:
    """A function of the connection, which runs inside a transaction; `alone`: with no other write in it."""

    future: "asyncio.Future[Any]"
    due: float
    work: Callable[[apsw.Connection], Any]
    changes: Subject | None
    alone: bool
    result: Any = None


Write = AddPet | Call
