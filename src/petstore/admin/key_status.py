"""The state of keys at a moment: what the store and the gate together say of them."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from petstore.gate import Gate
from petstore.keys import ApiKey
from petstore.rate_limits import SECOND, used

KeyState = Literal["active", "banned", "suspended", "expired", "revoked"]
KEY_STATES: tuple[KeyState, ...] = get_args(KeyState)


class KeyStatus(NamedTuple):
    """A key, its state, and what it has used of its open windows. `banned_until` is in Unix seconds."""

    key: ApiKey
    state: KeyState
    banned_until: float | None
    minute_used: int
    day_used: int


async def statuses(gate: Gate, keys: Sequence[ApiKey], now: float) -> list[KeyStatus]:
    """The status of each of some hundred keys, in the same order. Raises Unavailable."""
    found: list[KeyStatus] = []
    for key, record in zip(keys, await gate.windows([key.id for key in keys]), strict=True):
        seen = used(record, int(now * SECOND))
        banned_until = seen.banned_until / SECOND if seen.banned_until else None
        state: KeyState = key.state(now)
        if state == "active" and banned_until is not None:  # a ban matters while the key would be admitted without it
            state = "banned"
        found.append(KeyStatus(key, state, banned_until, seen.minute, seen.day))
    return found
