"""When to try again, and after how long: functions of an answer, a number and a random fraction. No clock, no I/O."""

from collections.abc import Mapping
from datetime import UTC

from petstore_client._errors import (
    ApiError,
    ConnectionFailed,
    IdempotencyConflict,
    PetstoreError,
    RateLimited,
    RequestTimeout,
    ServerError,
    TimedOut,
)

FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 8.0
_AGES = 1e9  # seconds: what any longer Retry-After is cut to, so that arithmetic on it stays exact


def worth_retrying(error: PetstoreError) -> bool:
    """Whether the same request may succeed later. Each is safe to repeat: an added animal has its idempotency key."""
    return isinstance(
        error, RateLimited | ServerError | RequestTimeout | IdempotencyConflict | ConnectionFailed | TimedOut
    )


def wait_after(error: PetstoreError, number: int, fraction: float) -> float:
    """Seconds to wait after try `number` has failed: exactly what the service asks for, or else the backoff."""
    asked = error.retry_after if isinstance(error, ApiError) else None
    return backoff(number, fraction) if asked is None else asked


def backoff(number: int, fraction: float) -> float:
    """Seconds to wait after try `number`, counted from 1: from half to all of 0.5, 1, 2, 4, 8, 8, …

    `fraction` is random, from 0 to 1: clients that failed together should not come back together.
    """
    most = min(FIRST_BACKOFF * 2.0 ** min(number - 1, 10), LONGEST_BACKOFF)
    return most * (1 + fraction) / 2


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that an answer asks to wait, or None if it does not say so, or says so in the past.

    A date is compared with the answer's own `Date`, which is by the same clock; `now`, a Unix timestamp, stands in.
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
    return min(seconds, _AGES) if seconds > 0 else None


def _timestamp(text: str) -> float | None:
    from email.utils import parsedate_to_datetime  # on demand: few answers need it, and it is slow to import

    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):  # a zone may be a million years away
        return None
