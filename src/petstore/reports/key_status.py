"""Determines the current status of keys from the store and the gate."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from petstore.errors import Unavailable
from petstore.gate import Gate, bans_in_force
from petstore.keys import ApiKey, KeyQuery, KeySort
from petstore.pets import INT64_MAX
from petstore.plans import Plan
from petstore.rate_limits import SECOND, used
from petstore.store import Store

BATCH = 1_000  # maximum number of keys per call to the gate

KeyState = Literal["active", "banned", "suspended", "expired", "revoked"]
KEY_STATES: tuple[KeyState, ...] = get_args(KeyState)
GATE_STATES = ("active", "banned")  # states that depend on bans, which the store does not know
KeyOrder = KeySort | Literal["usage"]


class KeyStatus(NamedTuple):
    """A key, its state, and its request counts for the current minute and day. `banned_until` is a Unix time."""

    key: ApiKey
    state: KeyState
    banned_until: float | None
    minute_used: int
    day_used: int


# The sort function for each order. Python's sort is stable, so API keys that compare equal stay sorted newest first.
ORDERS: dict[KeyOrder, Callable[[KeyStatus], Any]] = {
    "created": lambda status: 0,
    "name": lambda status: status.key.name,
    "last-used": lambda status: -(status.key.last_used or 0.0),
    "usage": lambda status: -status.day_used,
}


async def statuses(gate: Gate, keys: Sequence[ApiKey], now: float) -> list[KeyStatus]:
    """Returns the status of each key, in the same order. Accepts at most BATCH keys. Raises Unavailable."""
    found: list[KeyStatus] = []
    for key, record in zip(keys, await gate.windows([key.id for key in keys]), strict=True):
        seen = used(record, int(now * SECOND))
        banned_until = seen.banned_until / SECOND if seen.banned_until else None
        state: KeyState = key.state(now)
        if state == "active" and banned_until is not None:  # other states take precedence over a ban
            state = "banned"
        found.append(KeyStatus(key, state, banned_until, seen.minute, seen.day))
    return found


async def status_of(gate: Gate, key: ApiKey, now: float) -> KeyStatus | None:
    """Returns the status of a key, or None if the gate does not respond."""
    with contextlib.suppress(Unavailable):
        (status,) = await statuses(gate, [key], now)
        return status
    return None


def in_state(query: KeyQuery, state: KeyState | None, banned: Sequence[str]) -> KeyQuery:
    """Limits a query to keys in this state. `banned` are the ids of banned keys, needed only for GATE_STATES."""
    if state == "banned":
        return query._replace(state="active", ids=banned)
    return query._replace(state=state, except_ids=banned if state == "active" else ())


async def list_keys(
    stores: Sequence[Store], gate: Gate, text: str, plan: Plan | None, state: KeyState | None, sort: KeyOrder,
    limit: int, before: ApiKey | None, now: float, expires_by: float | None = None,
) -> list[KeyStatus]:  # fmt: skip
    """Returns the status of up to `limit` keys. `before` is the last key on the previous page. Raises Unavailable."""
    banned = [ban.key_id for ban in await bans_in_force(gate, now)] if state in GATE_STATES else []
    query = in_state(KeyQuery(text, plan, expires_by=expires_by), state, banned)
    keys: list[ApiKey] = []
    for store in stores:
        if sort == "usage":  # the store cannot sort by usage, so read all keys
            keys += await store.keys.search(query, now=now, after=before, limit=INT64_MAX)
        else:
            keys += await store.keys.search(query, now=now, sort=sort, after=before, limit=limit)
    keys.sort(key=lambda key: (key.created, key.id), reverse=True)
    batches = [keys[start : start + BATCH] for start in range(0, len(keys), BATCH)]
    found = [status for batch in batches for status in await statuses(gate, batch, now)]
    return sorted(found, key=ORDERS[sort])[:limit]
