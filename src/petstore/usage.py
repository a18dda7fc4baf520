"""Usage: the number of requests per key and time interval, and the time spans that tables and charts cover."""

import calendar
import re
import string
from datetime import UTC, datetime
from typing import Literal, NamedTuple, get_args
from urllib.parse import quote

from petstore.keys import Environment, without_keys
from petstore.operations import OperationName

# The usage measures for requests with a valid key. The gate counts every `admitted` request, even one that fails later.
# Workers count the other measures.
KeyMeasure = Literal["admitted", "client_error", "server_error", "refused", "banned"]
# The usage measures for requests without a valid key. Workers count each such request under exactly one measure.
AnonymousMeasure = Literal[
    "unauthorized", "anonymous_ok", "anonymous_client_error", "anonymous_server_error", "anonymous_refused"
]
Measure = KeyMeasure | AnonymousMeasure

Interval = Literal[60, 3600, 86_400]
MINUTE: Literal[60] = 60
HOUR: Literal[3600] = 3600
DAY: Literal[86_400] = 86_400
INTERVALS: tuple[Interval, ...] = get_args(Interval)
END_OF_TIME = 2**62
_MONTH = re.compile("(?:19[7-9][0-9]|[2-9][0-9]{3})-(?:0[1-9]|1[0-2])").fullmatch
PRINTABLE = string.ascii_letters + string.digits + string.punctuation

# Each key's daily usage and the hourly totals are kept forever. Usage for shorter intervals expires.
MINUTES_KEPT = 2 * HOUR  # how long each key's per-minute usage is kept
USAGE_DAYS = 400  # how many days each key's hourly usage is kept, by default
TOTAL_MINUTES_KEPT = 26 * HOUR  # how long the per-minute totals are kept
RECENT_ERRORS = 20  # the number of errors kept for each key
PATH_MAX = 200  # longer paths are truncated to this many characters


class KeyUsage(NamedTuple):
    """How many of a key's requests had one outcome, in an interval that began at `start` (Unix seconds)."""

    key_id: str
    start: int
    measure: KeyMeasure
    requests: int


class OperationUsage(NamedTuple):
    """Like `KeyUsage`, but counts only requests for one operation."""

    key_id: str
    start: int
    measure: KeyMeasure
    requests: int
    operation: OperationName


class AdmissionTotal(NamedTuple):
    """How many of a key's requests for an operation the gate has admitted. The total never decreases within an epoch.

    If a gate loses its totals, it starts a new epoch and counts from zero.
    """

    environment: Environment
    key_id: str
    operation: OperationName
    epoch: int
    total: int


class RecentError(NamedTuple):
    """A request with a valid key that was refused or failed. `path_to_keep` shortens `path` before it is stored."""

    key_id: str
    at: float
    request_id: str
    operation: OperationName
    status: int
    code: str
    path: str


class TotalUsage(NamedTuple):
    """How many requests of all clients were counted under one measure, in an interval that began at `start`.

    `start` is in Unix seconds. No measure covers both requests with a valid key and requests without one.
    """

    start: int
    measure: Measure
    requests: int


class KeyTotal(NamedTuple):
    """One key's requests in a time span."""

    key_id: str
    admitted: int
    refused: int
    banned: int
    last: int  # the start of the last interval in which the key was used

    @property
    def requests(self) -> int:
        return self.admitted + self.refused + self.banned


class Span(NamedTuple):
    """A time span that ends now, and how it is divided into intervals for tables and charts."""

    length: int
    interval: Interval  # the interval that each usage row covers in the per-key totals
    bar: int  # seconds per bar in the all-requests chart
    total_interval: Literal[60, 3600]  # the interval that each usage row covers in the all-requests chart
    key_bar: int  # seconds per bar in the chart for one key
    usage_interval: Interval  # the interval that each usage row covers in the chart for one key

    def since(self, now: float) -> int:
        """Returns the start of the span whose last interval contains `now`."""
        return int(now) // self.interval * self.interval + self.interval - self.length

    def bars(self, now: float, seconds: int) -> list[int]:
        """Returns the start time of each bar. Bars are `seconds` long, and the last one contains `now`."""
        return list(range(self.since(now), int(now) + 1, seconds))


SpanName = Literal["hour", "day", "week", "month"]
SPANS: dict[SpanName, Span] = {
    "hour": Span(HOUR, MINUTE, MINUTE, MINUTE, MINUTE, MINUTE),
    "day": Span(DAY, HOUR, 15 * MINUTE, MINUTE, HOUR, HOUR),
    "week": Span(7 * DAY, DAY, HOUR, HOUR, HOUR, HOUR),
    "month": Span(30 * DAY, DAY, 6 * HOUR, HOUR, 6 * HOUR, HOUR),
}


def path_to_keep(path: str) -> str:
    """Converts a path to printable ASCII, removes API keys, and truncates the path so that it fits in a table."""
    # Remove keys before truncating the path, because a truncated key might not be recognised.
    kept = without_keys(quote(path, safe=PRINTABLE, errors="surrogatepass"))
    return kept if len(kept) <= PATH_MAX else f"{kept[: PATH_MAX - 1]}…"


def calendar_month(text: str) -> tuple[Span, int]:
    """Returns the span of a UTC month such as `2026-10`, and the Unix time of its last second. Raises ValueError."""
    if not _MONTH(text):
        raise ValueError(f"{text!r} is not a month; write it like 2026-10.")
    year, month = int(text[:4]), int(text[5:])
    days = calendar.monthrange(year, month)[1]
    end = int(datetime(year, month, days, tzinfo=UTC).timestamp()) + DAY - 1
    return Span(days * DAY, DAY, DAY, HOUR, DAY, DAY), end
