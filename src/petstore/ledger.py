"""What operators did (the audit log) and what keys used (by hour): the records and the contract of their keeper."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

# How a request ended, as far as a plot or a bill is concerned.
Answer = Literal["ok", "client_error", "refused", "banned", "server_error"]
ANSWERS: tuple[Answer, ...] = ("ok", "client_error", "refused", "banned", "server_error")
HOUR = 3600


class Deed(msgspec.Struct, frozen=True):
    """One operator action: who did what to whom, when (Unix seconds)."""

    at: float
    actor: str
    action: str
    subject: str
    detail: str = ""


class Usage(NamedTuple):
    """`requests` requests of one key ended in `answer` during the hour that began at `hour` (Unix seconds)."""

    key_id: str
    hour: int
    answer: Answer
    requests: int


class Ledger(Protocol):
    """Every method raises Unavailable when the store cannot answer."""

    async def record(self, deed: Deed) -> None: ...

    async def deeds(self, *, before: int | None = None, limit: int = 100) -> list[tuple[int, Deed]]:
        """Deeds with their numbers, newest first."""

    async def add_usage(self, rows: Sequence[Usage], last_used: dict[str, float]) -> None: ...

    async def usage(self, *, since: int, key_id: str | None = None) -> list[Usage]: ...
