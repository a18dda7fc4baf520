"""Minute and day windows, strikes and bans of one key: pure arithmetic on whole milliseconds.

A window is fixed and starts with the first request counted in it. One decision covers both windows: a request is
counted in both or in neither, and a refused request consumes nothing. A refused request is a strike; more strikes
in one window than the threshold earn a ban, which doubles with each further ban within a day.
"""

from enum import IntEnum
from typing import Final, Literal, NamedTuple

import msgspec

from petstore.plans import Limits

SECOND = 1_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND

Window = Literal["minute", "day"]


class Windows(NamedTuple):
    """All that is remembered of a key between two requests."""

    minute_start: int = 0
    minute_used: int = 0
    day_start: int = 0
    day_used: int = 0
    strike_start: int = 0
    strikes: int = 0
    ban_start: int = 0
    ban_end: int = 0
    bans: int = 0


class BanPolicy(NamedTuple):
    """`threshold` 0 stands for the key's own limit per minute."""

    length: int = 60 * SECOND
    ceiling: int = 3600 * SECOND
    threshold: int = 0


class Outcome(IntEnum):
    ADMITTED = 0
    LIMITED = 1
    BANNED = 2


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What the headers need: the window spoken of, when it resets and how long that is from now. In milliseconds."""

    outcome: Outcome
    window: Window
    limit: int
    remaining: int
    reset: int
    wait: int


ADMITTED: Final = Outcome.ADMITTED
LIMITED: Final = Outcome.LIMITED
BANNED: Final = Outcome.BANNED

_new = tuple.__new__  # makes a named tuple in half the time of calling its class


def admit(w: Windows, limits: Limits, policy: BanPolicy, now: int) -> tuple[Windows, Decision]:
    """Decide one request of a key and return what to remember."""
    minute_start, minute_used, day_start, day_used, strike_start, strikes, ban_start, ban_end, bans = w
    per_minute, per_day = limits

    if now < ban_end and now >= ban_start - DAY:
        return w, Decision(BANNED, "minute", per_minute, 0, ban_end, ban_end - now)

    # A window is open from its start for its length; one that starts far in the future is a clock set back.
    minute_open = -MINUTE < now - minute_start < MINUTE
    day_open = -DAY < now - day_start < DAY
    minute_left = per_minute - minute_used if minute_open else per_minute
    day_left = per_day - day_used if day_open else per_day

    if minute_left > 0 and day_left > 0:
        if minute_open:
            minute_used += 1
        else:
            minute_start, minute_used, strikes = now, 1, 0
        if day_open:
            day_used += 1
        else:
            day_start, day_used = now, 1
        after = _new(
            Windows, (minute_start, minute_used, day_start, day_used, strike_start, strikes, ban_start, ban_end, bans)
        )
        if day_left <= minute_left:  # a tie speaks of the longer window
            return after, Decision(ADMITTED, "day", per_day, day_left - 1, day_start + DAY, day_start + DAY - now)
        reset = minute_start + MINUTE
        return after, Decision(ADMITTED, "minute", per_minute, minute_left - 1, reset, reset - now)

    # Strikes are counted within the open minute or, when only the day is exhausted, within a minute of their own.
    if minute_open:
        window = minute_start
    elif -MINUTE < now - strike_start < MINUTE:
        window = strike_start
    else:
        window = now
    strikes = strikes + 1 if window == strike_start else 1
    strike_start = window

    if strikes > (policy.threshold or per_minute):
        bans = bans + 1 if bans and now - ban_start < DAY else 1
        ban_start, ban_end = now, now + min(policy.length << min(bans - 1, 40), policy.ceiling)
        after = Windows(minute_start, minute_used, day_start, day_used, 0, 0, ban_start, ban_end, bans)
        return after, Decision(BANNED, "minute", per_minute, 0, ban_end, ban_end - now)

    after = Windows(minute_start, minute_used, day_start, day_used, strike_start, strikes, ban_start, ban_end, bans)
    minute_end = minute_start + MINUTE if minute_left <= 0 else 0
    day_end = day_start + DAY if day_left <= 0 else 0
    if day_end >= minute_end:
        return after, Decision(LIMITED, "day", per_day, 0, day_end, day_end - now)
    return after, Decision(LIMITED, "minute", per_minute, 0, minute_end, minute_end - now)


def admit_address(start: int, used: int, per_minute: int, now: int) -> tuple[int, int, Decision]:
    """The one window of a client address without a valid key: `start` and `used` to remember, and the decision."""
    if not -MINUTE < now - start < MINUTE:
        start, used = now, 0
    reset = start + MINUTE
    if used >= per_minute:
        return start, used, Decision(LIMITED, "minute", per_minute, 0, reset, reset - now)
    return start, used + 1, Decision(ADMITTED, "minute", per_minute, per_minute - used - 1, reset, reset - now)


def lifted(w: Windows) -> Windows:
    """The same key without its ban, and without the memory of earlier ones."""
    return w._replace(strike_start=0, strikes=0, ban_start=0, ban_end=0, bans=0)


def forgettable(w: Windows, now: int) -> bool:
    """Whether nothing of the record can matter any more."""
    return (
        now - w.minute_start >= MINUTE
        and now - w.day_start >= DAY
        and now - w.strike_start >= MINUTE
        and now - w.ban_start >= DAY
        and now >= w.ban_end
    )
