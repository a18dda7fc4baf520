"""Which errors to retry, and after how long: functions of an error, a count and random fractions. No clock, no I/O."""

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
MAX_BACKOFF = 8.0
SLOT = 0.2  # seconds
SLOTS = 25
_MAX_RETRY_AFTER = 1e9  # seconds: a longer Retry-After is cut to this, so that arithmetic on it stays exact


def is_retryable(error: PetstoreError | None) -> bool:
    """Whether the same request may succeed later. Repeating is safe: a create carries its idempotency key."""
    return isinstance(
        error, RateLimited | ServerError | RequestTimeout | IdempotencyConflict | ConnectionFailed | TimedOut
    )


def delay_after(error: PetstoreError, number: int, fraction: float) -> float:
    """Seconds to wait after failure `number` in a row: at least the Retry-After, and the backoff on top of it."""
    asked = error.retry_after if isinstance(error, ApiError) else None
    return (asked or 0.0) + backoff(number, fraction)


def backoff(number: int, fraction: float) -> float:
    """Seconds after failure `number`, counted from 1: from half to all of 0.5, 1, 2, 4, 8, 8, …

    `fraction` is random, from 0 to 1: clients that failed together should not return together.
    """
    most = min(FIRST_BACKOFF * 2.0 ** min(number - 1, 10), MAX_BACKOFF)
    return most * (1 + fraction) / 2


def slot_of(process_id: int, client_number: int) -> int:
    """The time slot of a client. Neighbouring processes are three slots apart, clients of one process one slot."""
    return (3 * process_id + client_number) % SLOTS


def next_slot(earliest: float, slot: int, fraction: float) -> float:
    """The first moment from `earliest` on that lies in this slot, at the random point that `fraction` chooses.

    With random delays of up to 5 s alone, two of four processes would return within 100 ms after one pause in five.
    But all processes of a machine read one monotonic clock. On it, points in different slots are 0.15 s apart or more.
    """
    point = (slot + fraction / 4) * SLOT
    return earliest + (point - earliest) % (SLOT * SLOTS)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds in a `Retry-After` header, or None if it is absent, malformed or in the past.

    A date is compared with the response's `Date`, which the same clock wrote; without one, with the Unix time `now`.
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
    from email.utils import parsedate_to_datetime  # imported on demand: slow to import, and rarely needed

    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):  # OverflowError: a time zone may be a million years away
        return None
