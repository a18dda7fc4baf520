"""Usage: requests counted per key and time, and the time spans it is shown in."""

import calendar
import string
from datetime import UTC, datetime
from typing import Literal, NamedTuple, get_args
from urllib.parse import quote

from petstore.keys import Environment, without_keys
from petstore.operations import OperationName

# What is counted of a key. The gate counts `admitted`, workers count the others. Errors are also part of `admitted`.
KeyMeasure = Literal["admitted", "client_error", "server_error", "refused", "banned"]
# What workers count of requests without a valid key: each of these requests is in exactly one measure.
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
PRINTABLE = string.ascii_letters + string.digits + string.punctuation

# Days of keys, and hours of all keys together, are kept forever; the finer intervals for this long.
MINUTES_KEPT = 2 * HOUR
USAGE_DAYS = 400  # hours, unless the operator chooses another number of days
TOTAL_MINUTES_KEPT = 26 * HOUR
RECENT_ERRORS = 20  # kept of each key
PATH_MAX = 200  # characters of a path that are kept


class KeyUsage(NamedTuple):
    """One measure of one key, in the interval that began at `start` (Unix seconds)."""

    key_id: str
    start: int
    measure: KeyMeasure
    requests: int


class OperationUsage(NamedTuple):
    """The same for one operation."""

    key_id: str
    start: int
    measure: KeyMeasure
    requests: int
    operation: OperationName


class AdmissionTotal(NamedTuple):
    """How often the gate has admitted a key for an operation, as a number that only grows.

    `epoch` identifies one count from zero: a gate that has lost its totals begins again under a new one.
    """

    environment: Environment
    key_id: str
    operation: OperationName
    epoch: int
    total: int


class RecentError(NamedTuple):
    """A request of a key that was refused or answered with an error. `path` is as `path_to_keep` returns it."""

    key_id: str
    at: float
    request_id: str
    operation: OperationName
    status: int
    code: str
    path: str


class TotalUsage(NamedTuple):
    """One measure of all keys together, or of the requests without a valid key."""

    start: int
    measure: Measure
    requests: int


class KeyTotal(NamedTuple):
    """The requests of one key in a time span."""

    key_id: str
    admitted: int
    refused: int
    banned: int
    last: int  # the start of the last interval with a request

    @property
    def requests(self) -> int:
        return self.admitted + self.refused + self.banned


class Span(NamedTuple):
    """A time span that ends now, in whole intervals, and the rows and bars that show it."""

    length: int
    interval: Interval  # of the rows that are summed per key
    bar: int  # seconds per bar in the chart of all requests
    total_interval: Literal[60, 3600]  # of the rows behind those bars
    key_bar: int  # seconds per bar in the chart of one key
    usage_interval: Interval  # of the rows behind those bars

    def since(self, now: float) -> int:
        """The start of the span. Its last interval is the one that contains `now`."""
        return int(now) // self.interval * self.interval + self.interval - self.length

    def bars(self, now: float, seconds: int) -> list[int]:
        """The start of each bar of that many seconds; the last bar contains `now`."""
        return list(range(self.since(now), int(now) + 1, seconds))


SpanName = Literal["hour", "day", "week", "month"]
SPANS: dict[SpanName, Span] = {
    "hour": Span(HOUR, MINUTE, MINUTE, MINUTE, MINUTE, MINUTE),
    "day": Span(DAY, HOUR, 15 * MINUTE, MINUTE, HOUR, HOUR),
    "week": Span(7 * DAY, DAY, HOUR, HOUR, HOUR, HOUR),
    "month": Span(30 * DAY, DAY, 6 * HOUR, HOUR, 6 * HOUR, HOUR),
}


def path_to_keep(path: str) -> str:
    """Returns the path without keys, in printable ASCII, and cut to a length that a table can show."""
    # Keys are found before the cut, which would leave a part of a key that is not recognised.
    kept = without_keys(quote(path, safe=PRINTABLE, errors="surrogatepass"))
    return kept if len(kept) <= PATH_MAX else f"{kept[: PATH_MAX - 1]}…"


def calendar_month(year: int, month: int) -> tuple[Span, int]:
    """A month in UTC: its span in days, and the second at which that span ends."""
    days = calendar.monthrange(year, month)[1]
    end = int(datetime(year, month, days, tzinfo=UTC).timestamp()) + DAY - 1
    return Span(days * DAY, DAY, DAY, HOUR, DAY, DAY), end
