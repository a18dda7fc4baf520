"""Minute and day windows, strikes and bans of one key: pure arithmetic on whole milliseconds.

A window is fixed and starts with the first request counted in it. A request is counted in both windows or in neither;
a refused request consumes nothing. A refused request is a strike, and an admitted one clears the strikes. Too many
strikes in a row ban the key; each further ban within a day is twice as long.
"""

from enum import IntEnum
from typing import Final, Literal, NamedTuple

import msgspec

from petstore.plans import Limits

SECOND = 1_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND

STRIKES_MAX = 1_000  # the largest threshold that follows from a key's limit per minute

Window = Literal["minute", "day"]


class Windows(NamedTuple):
    """What a gate stores of a key between two requests, beside its counts."""

    minute_start: int = 0
    minute_used: int = 0
    day_start: int = 0
    day_used: int = 0
    strikes: int = 0
    ban_start: int = 0
    ban_end: int = 0
    bans: int = 0


class BanPolicy(NamedTuple):
    """A key with more than `threshold` strikes is banned; 0 stands for the key's limit per minute."""

    length: int = 60 * SECOND
    ceiling: int = 3600 * SECOND
    threshold: int = 0


class Outcome(IntEnum):
    ADMITTED = 0
    LIMITED = 1
    BANNED = 2


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What the headers need: a window, when it resets, and how long that is from now: `wait` becomes Retry-After.

    Times are in milliseconds. After a refusal `reset` is the moment from which a request is admitted.
    """

    outcome: Outcome
    window: Window
    limit: int
    remaining: int
    reset: int
    wait: int


class Used(NamedTuple):
    """What a key has used of its open windows, and the end of its ban in milliseconds, or 0."""

    minute: int
    day: int
    banned_until: int


ADMITTED: Final = Outcome.ADMITTED
LIMITED: Final = Outcome.LIMITED
BANNED: Final = Outcome.BANNED

_new = tuple.__new__  # makes a named tuple in half the time of calling its class


def admit(w: Windows, limits: Limits, policy: BanPolicy, now: int) -> tuple[Windows, Decision]:
    """Decide one request of a key. Returns the record to store: `w` itself when nothing has changed."""
    minute_start, minute_used, day_start, day_used, strikes, ban_start, ban_end, bans = w
    per_minute, per_day = limits

    if now < ban_end:
        if now >= ban_start - DAY:  # requests during a ban are no strikes, and do not extend the ban
            return w, _refusal(BANNED, w, limits, now)
        ban_start = ban_end = bans = 0  # the clock was set back by more than a day

    # A window that starts further in the future than its length is not open: the clock was set back.
    minute_open = -MINUTE < now - minute_start < MINUTE
    day_open = -DAY < now - day_start < DAY
    minute_left = per_minute - minute_used if minute_open else per_minute
    day_left = per_day - day_used if day_open else per_day

    if minute_left > 0 and day_left > 0:
        if minute_open:
            minute_used += 1
        else:
            minute_start, minute_used = now, 1
        if day_open:
            day_used += 1
        else:
            day_start, day_used = now, 1
        after = _new(Windows, (minute_start, minute_used, day_start, day_used, 0, ban_start, ban_end, bans))
        if day_left <= minute_left:  # in a tie the headers show the longer window
            return after, Decision(ADMITTED, "day", per_day, day_left - 1, day_start + DAY, day_start + DAY - now)
        reset = minute_start + MINUTE
        return after, Decision(ADMITTED, "minute", per_minute, minute_left - 1, reset, reset - now)

    strikes += 1
    outcome = LIMITED
    if strikes > (policy.threshold or min(per_minute, STRIKES_MAX)):
        outcome, strikes = BANNED, 0
        bans = bans + 1 if bans and now - ban_start < DAY else 1
        ban_start, ban_end = now, now + min(policy.length << min(bans - 1, 40), policy.ceiling)
    after = _new(Windows, (minute_start, minute_used, day_start, day_used, strikes, ban_start, ban_end, bans))
    return after, _refusal(outcome, after, limits, now)


def _refusal(outcome: Outcome, w: Windows, limits: Limits, now: int) -> Decision:
    """Shows the exhausted window that reopens last, or the ban if that ends later.

    Windows that are over end before now, so they are never the last. A window in the future counts too, since it would
    refuse the client when it returns.
    """
    minute_start, minute_used, day_start, day_used, _, _, ban_end, _ = w
    per_minute, per_day = limits
    minute_end = minute_start + MINUTE if minute_used >= per_minute else 0
    day_end = day_start + DAY if day_used >= per_day else 0
    if outcome is BANNED and ban_end > minute_end and ban_end > day_end:
        return Decision(BANNED, "minute", per_minute, 0, ban_end, ban_end - now)
    if day_end >= minute_end:
        return Decision(outcome, "day", per_day, 0, day_end, day_end - now)
    return Decision(outcome, "minute", per_minute, 0, minute_end, minute_end - now)


def admit_address(start: int, used: int, per_minute: int, now: int) -> tuple[int, int, Decision]:
    """Decide one request of an address, which has one window. Returns the window's start, its use, and the decision."""
    if not -MINUTE < now - start < MINUTE:
        start, used = now, 0
    reset = start + MINUTE
    if used >= per_minute:
        return start, used, Decision(LIMITED, "minute", per_minute, 0, reset, reset - now)
    return start, used + 1, Decision(ADMITTED, "minute", per_minute, per_minute - used - 1, reset, reset - now)


def used(w: Windows, now: int) -> Used:
    """What the record of a key says at a moment."""
    return Used(
        minute=w.minute_used if -MINUTE < now - w.minute_start < MINUTE else 0,
        day=w.day_used if -DAY < now - w.day_start < DAY else 0,
        banned_until=w.ban_end if w.ban_start - DAY <= now < w.ban_end else 0,
    )


def lifted(w: Windows) -> Windows:
    """The record without its strikes, its ban and the number of earlier bans."""
    return w._replace(strikes=0, ban_start=0, ban_end=0, bans=0)
