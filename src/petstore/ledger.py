"""What operators did (the audit log) and what keys used: the records, the spans of time to look at them by, and the
contract of their keeper."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

# How a request ended, as far as a plot or a bill is concerned. `unauthorized` is nobody's: it had no valid key.
Answer = Literal["ok", "client_error", "unauthorized", "refused", "banned", "server_error"]
ANSWERS: tuple[Answer, ...] = ("ok", "client_error", "unauthorized", "refused", "banned", "server_error")
NOBODY = ""  # stands for the key of a request that has no valid one

Step = Literal[60, 3600, 86_400]
MINUTE: Literal[60] = 60
HOUR: Literal[3600] = 3600
DAY: Literal[86_400] = 86_400

# How long the finer figures are kept; days of keys, and hours of all keys together, are kept for ever.
MINUTES_KEPT = 2 * HOUR
HOURS_KEPT = 40 * DAY
TRAFFIC_MINUTES_KEPT = 26 * HOUR

# Everything that an operator can do, as the audit log calls it.
ACTIONS = (
    "create key", "rotate key", "revoke key", "set limits", "lift ban",
    "add animal", "set status", "import",
    "sign in", "add operator", "revoke operator",
    "backup", "restore", "copy",
)  # fmt: skip


class Deed(msgspec.Struct, frozen=True):
    """One operator action: who did what to whom, when (Unix seconds)."""

    at: float
    actor: str
    action: str
    subject: str
    detail: str = ""


class FoundDeeds(NamedTuple):
    """Deeds with their numbers, newest first. When there may be more, they are numbered below `looked_to`."""

    deeds: list[tuple[int, Deed]]
    looked_to: int
    more: bool


class Usage(NamedTuple):
    """`requests` requests of one key ended in `answer` during the step that began at `start` (Unix seconds)."""

    key_id: str
    start: int
    answer: Answer
    requests: int


class Traffic(NamedTuple):
    """The same of all keys together, and of callers without a valid one."""

    start: int
    answer: Answer
    requests: int


class KeyTotal(NamedTuple):
    """What one key asked for in a span of time; `requests` has the refused and the banned in it."""

    key_id: str
    requests: int
    refused: int
    banned: int


class Span(NamedTuple):
    """A stretch of time up to now, in whole steps, and the figures that show it best."""

    length: int
    step: Step  # of the rows that are summed up per key
    bar: int  # seconds of one bar when all requests are plotted
    traffic: Literal[60, 3600]  # the rows that make those bars
    key_bar: int  # the same for one key
    usage: Step

    def since(self, now: float) -> int:
        """When the span began: the step that is under way is its last."""
        return int(now) // self.step * self.step + self.step - self.length

    def bars(self, now: float, seconds: int) -> list[int]:
        """When each bar of that many seconds begins; the last one holds `now`."""
        return list(range(self.since(now), int(now) + 1, seconds))


SpanName = Literal["hour", "day", "month"]
SPANS: dict[SpanName, Span] = {
    "hour": Span(HOUR, MINUTE, MINUTE, MINUTE, MINUTE, MINUTE),
    "day": Span(DAY, HOUR, 15 * MINUTE, MINUTE, HOUR, HOUR),
    "month": Span(30 * DAY, DAY, 6 * HOUR, HOUR, 6 * HOUR, HOUR),
}


class Ledger(Protocol):
    """Every method raises Unavailable when the store cannot answer."""

    async def record(self, deed: Deed) -> None: ...

    async def find_deeds(
        self, *, before: int | None = None, limit: int = 100, actor: str = "", action: str = "", text: str = ""
    ) -> FoundDeeds:
        """Deeds whose actor has `actor` in it, whose action is `action`, and whose subject or detail has `text` in it.

        At most SEARCH_STEP deeds are looked at.
        """

    async def add_usage(self, rows: Sequence[Usage], last_used: dict[str, float]) -> None:
        """Adds each row to the minute, the hour and the day that `start` lies in, and forgets what is too old.

        Rows of NOBODY are only part of the traffic.
        """

    async def usage_of(self, key_ids: Sequence[str], step: Step, starts: Sequence[int]) -> list[Usage]:
        """What some keys used in the steps that began then."""

    async def busiest(self, *, step: Step, since: int, limit: int, after: str = "") -> list[KeyTotal]:
        """Keys by their number of requests, most first; `after` is the key that an earlier answer ended with."""

    async def traffic(self, *, step: Literal[60, 3600], since: int) -> list[Traffic]: ...
