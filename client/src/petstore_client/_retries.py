"""Decides which attempts to repeat, when, and for how long. No clock, no I/O."""

from collections.abc import Mapping
from datetime import UTC
from typing import Literal

import msgspec

from petstore_client._errors import ApiError, PetstoreError
from petstore_client._keys import Secret
from petstore_client._messages import Alarm, Failure, FailureKind, Response

Kind = FailureKind | Literal["response", "refused", "unauthorized", "late", "crash"]
"""What an attempt means. `unreachable`, `outage`: the service is down. `refused`: a 429. `unauthorized`: a 401.
`late`: a 408. `crash`: a 500. `response`: any other response. `final`: the request cannot be sent."""

UNREACHABLE_FOR = 10.0  # seconds; before the service has responded once, its host may be mistyped
REPEATABLE_FOR = 23 * 3600.0  # seconds; the service forgets an idempotency key after 24 hours
MAX_CRASHES = 2
FIRST_BACKOFF = 0.5  # seconds
MAX_BACKOFF = 8.0
_MAX_RETRY_AFTER = 1e9  # in seconds; longer values are capped, so that float arithmetic stays precise
_KINDS: dict[int, Kind] = {
    401: "unauthorized", 408: "late", 429: "refused",
    501: "response", 502: "outage", 503: "outage", 504: "outage", 505: "response",
}  # fmt: skip


def kind_of(outcome: Response | Failure) -> Kind:
    """Returns what an attempt means."""
    if isinstance(outcome, Failure):
        return outcome.kind
    return _KINDS.get(outcome.status) or ("crash" if outcome.status >= 500 else "response")


class Call(msgspec.Struct, eq=False):
    """One call: what it has tried, and until when it may send requests. Times are in seconds on a monotonic clock."""

    began: float
    deadline: float
    alarm: Alarm
    number: int = 0  # of the last attempt
    failures: int = 0  # attempts that failed, apart from those that the service refused
    crashes: int = 0  # attempts that ended with a 500
    started: float = 0.0  # when the last attempt began
    pauses: int = 0  # how many pauses the rate limiter had begun by then
    has_permit: bool = False
    secret: Secret | None = None  # the API key of the last attempt
    kind: Kind = "response"  # what the last attempt meant
    error: PetstoreError | None = None  # the error of the last attempt

    def start(self, now: float, secret: Secret | None, pauses: int) -> None:
        """Records that an attempt begins."""
        self.number += 1
        self.has_permit = True
        self.started, self.secret, self.pauses = now, secret, pauses

    def finish(self, kind: Kind, error: PetstoreError | None) -> None:
        """Records the outcome of an attempt."""
        self.kind, self.error = kind, error
        if kind in ("refused", "unauthorized"):
            return
        self.failures += 1
        self.crashes += kind == "crash"
        if kind != "unreachable":  # the request may have added an animal, so the service must remember its key
            self.deadline = min(self.deadline, self.started + REPEATABLE_FOR)

    def end(self, *, is_unreachable: bool) -> float:
        """Returns the moment before which the next attempt must begin.

        `is_unreachable` says that connections to the service fail and that it has never responded.
        """
        return min(self.deadline, self.began + UNREACHABLE_FOR) if is_unreachable else self.deadline

    def may_repeat(self) -> bool:
        """Returns whether an attempt like the last one could succeed later."""
        return self.kind not in ("response", "final") and self.crashes <= MAX_CRASHES


def delay_after(error: PetstoreError, number: int, fraction: float) -> float:
    """Returns how many seconds to wait after `number` consecutive failures.

    If the response contained a `Retry-After` header, the delay is that time plus jitter. Otherwise, the delay grows
    exponentially, and up to half of it is jitter. `fraction`, a random number from 0 to 1, determines the jitter. It
    keeps clients that fail at the same time from retrying at the same time.
    """
    asked = error.retry_after if isinstance(error, ApiError) else None
    bound = max_jitter(asked or 0.0, number)
    return bound * (1 + fraction) / 2 if asked is None else asked + bound * fraction


def max_jitter(asked: float, number: int) -> float:
    """Returns the maximum jitter in seconds.

    Starts at 0.5 s or a tenth of `Retry-After`, whichever is longer, and doubles with each further failure, up to 8 s.
    """
    return min(max(FIRST_BACKOFF, asked / 10) * 2.0 ** min(number - 1, 10), MAX_BACKOFF)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Returns the `Retry-After` header as a number of seconds, or None if it is absent, malformed or in the past.

    If the header contains a date, that date is compared with the response's `Date` header, because both come from the
    same clock. If there is no `Date` header, the date is compared with the Unix time `now`.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        seconds = float(text)
    else:
        until = _timestamp(text)
        if until is None:
            return None
        since = _timestamp(headers.get("date", ""))
        seconds = until - (now if since is None else since)
    return min(seconds, _MAX_RETRY_AFTER) if seconds > 0 else None


def _timestamp(text: str) -> float | None:
    from email.utils import parsedate_to_datetime  # imported here because it is slow to import and rarely needed

    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):  # a huge time zone offset causes an OverflowError
        return None
