"""Rate limits and bans, as pure functions. Times are whole milliseconds.

Windows have a fixed length and start with the first request counted in them. An admitted request counts toward both the
minute window and the day window, and resets the key's strikes to zero. A refused request counts toward neither window,
but adds a strike. A key with too many strikes is banned. Each further ban within a day is twice as long.
"""

from enum import IntEnum
from typing import Final, Literal, NamedTuple

import msgspec

from petstore.plans import Limits

SECOND = 1_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND

STRIKES_MAX = 1_000  # the default threshold is capped at this value, but an operator can set a higher one

Window = Literal["minute", "day"]


class Windows(NamedTuple):
    """The state that the gate stores for each key, except for its admission counts."""

    minute_start: int = 0
    minute_used: int = 0
    day_start: int = 0
    day_used: int = 0
    strikes: int = 0
    ban_start: int = 0
    ban_end: int = 0
    bans: int = 0


class BanPolicy(NamedTuple):
    """When to ban a key and for how long. `length` and `ceiling` are in milliseconds.

    A key with more than `threshold` strikes is banned. If `threshold` is 0, the key's per-minute limit is
    used instead, capped at STRIKES_MAX.
    """

    length: int = 60 * SECOND
    ceiling: int = 3600 * SECOND
    threshold: int = 0


class Outcome(IntEnum):
    ADMITTED = 0
    LIMITED = 1
    BANNED = 2


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The decision about a request, with the values for the rate-limit headers. `wait` is for Retry-After.

    Times are in milliseconds. If the request is refused, `reset` is the time from which requests are admitted again.
    """

    outcome: Outcome
    window: Window
    limit: int
    remaining: int
    reset: int
    wait: int


class Used(NamedTuple):
    """How many requests are counted in a key's open windows, and when its ban ends.

    `banned_until` is a time in milliseconds, or 0 if the key is not banned.
    """

    minute: int
    day: int
    banned_until: int


ADMITTED: Final = Outcome.ADMITTED
LIMITED: Final = Outcome.LIMITED
BANNED: Final = Outcome.BANNED

_new = tuple.__new__  # twice as fast as calling the named tuple's class


def admit(w: Windows, limits: Limits, policy: BanPolicy, now: int) -> tuple[Windows, Decision]:
    """Decides whether to admit a request with a key. Returns the windows to store and the decision.

    If the windows have not changed, returns `w` itself.
    """
    minute_start, minute_used, day_start, day_used, strikes, ban_start, ban_end, bans = w
    per_minute, per_day = limits

    if now < ban_end:
        if now >= ban_start - DAY:  # requests during a ban are not strikes and do not extend the ban
            return w, _refusal(BANNED, w, limits, now)
        ban_start = ban_end = bans = 0  # the clock was set back by more than a day

    # If a window starts more than its own length in the future, the clock was set back, so the window is ignored.
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
        if day_left <= minute_left:  # in a tie, the headers describe the longer window
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
    """Returns a refusal that describes whichever ends last: an exhausted window or the ban.

    A window that has already ended is never chosen, because whatever caused the refusal ends later. A window that
    starts in the future counts as well, because it would cause the client's next request to be refused.
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
    """Decides whether to admit a request from an address.

    Returns the window to store (its start and the number of requests counted in it) and the decision.
    """
    if not -MINUTE < now - start < MINUTE:
        start, used = now, 0
    reset = start + MINUTE
    if used >= per_minute:
        return start, used, Decision(LIMITED, "minute", per_minute, 0, reset, reset - now)
    return start, used + 1, Decision(ADMITTED, "minute", per_minute, per_minute - used - 1, reset, reset - now)


def used(w: Windows, now: int) -> Used:
    """Returns how many requests are counted in a key's open windows at time `now`, and when its ban ends."""
    return Used(
        minute=w.minute_used if -MINUTE < now - w.minute_start < MINUTE else 0,
        day=w.day_used if -DAY < now - w.day_start < DAY else 0,
        banned_until=w.ban_end if w.ban_start - DAY <= now < w.ban_end else 0,
    )


def lifted(w: Windows) -> Windows:
    """Returns the windows with the ban removed, and with the counts of strikes and earlier bans reset to zero."""
    return w._replace(strikes=0, ban_start=0, ban_end=0, bans=0)
