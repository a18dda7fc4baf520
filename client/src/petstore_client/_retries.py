"""Decides which errors to retry and how long to wait. Pure functions: no clock, no I/O."""

from collections.abc import Mapping
from datetime import UTC

from petstore_client._errors import (
    ApiError,
    ConnectionFailed,
    KeyBanned,
    PetstoreError,
    RateLimited,
    RequestTimeout,
    ServerError,
    TimedOut,
)
from petstore_client._events import WaitReason

FIRST_BACKOFF = 0.5  # seconds
MAX_BACKOFF = 8.0
_MINUTE = 60.0  # the length of a per-minute window in seconds
_MAX_RETRY_AFTER = 1e9  # in seconds; longer values are capped, so that float arithmetic stays precise


def is_retryable(error: PetstoreError | None) -> bool:
    """Returns whether a retry could succeed. Retries are safe, because every create request has an idempotency key."""
    return isinstance(error, RateLimited | ServerError | RequestTimeout | ConnectionFailed | TimedOut)


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


def wait_reason(error: PetstoreError) -> WaitReason:
    """Returns why a call has to wait after this error.

    The per-minute limit never requires a wait of more than a minute.
    """
    if isinstance(error, KeyBanned):
        return "ban"
    if isinstance(error, RateLimited):
        return "day_limit" if (error.retry_after or 0.0) > _MINUTE else "minute_limit"
    if error.status is None:
        return "no_response"
    return "outage" if error.status == 503 else "failure"


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
