"""Lists and lifts bans, which the gate stores, with the keys, which the stores contain."""

from collections.abc import Iterable
from typing import NamedTuple

from petstore.audit import Actor
from petstore.errors import OperatorError
from petstore.gate import Ban, Gate, bans_in_force
from petstore.keys import ApiKey, StoredState
from petstore.rate_limits import ADMITTED, SECOND, BanPolicy, Window, Windows, admit, lifted
from petstore.store import Store
from petstore.wording import when


class AfterBan(NamedTuple):
    """Whether a key's next request will be admitted after its ban is lifted and, if not, why not."""

    state: StoredState
    used_up: Window | None  # the window whose limit is used up, if any
    admitted_from: int  # Unix seconds

    def __str__(self) -> str:
        if self.state != "active":
            return f"The key is {self.state}, so its requests are still refused."
        if self.used_up is None:
            return "The next request will be admitted."
        again = f"Requests will be admitted again from {when(self.admitted_from)}."
        return f"The per-{self.used_up} limit is used up. {again}"


def after_ban(key: ApiKey, windows: Windows, now: float) -> AfterBan:
    """Returns whether a key's next request will be admitted once the ban in `windows` is lifted."""
    _, decision = admit(lifted(windows), key.limits, BanPolicy(), int(now * SECOND))
    if decision.outcome is ADMITTED:
        return AfterBan(key.state(now), None, int(now))
    return AfterBan(key.state(now), decision.window, -(-decision.reset // SECOND))


async def bans_with_keys(stores: Iterable[Store], gate: Gate, now: float) -> list[tuple[Ban, ApiKey | None]]:
    """Returns the active bans with their keys, starting with the ban that ends last. Raises Unavailable.

    If a key no longer exists, for example after a restore, its ban is paired with None.
    """
    bans = await bans_in_force(gate, now)
    keys: dict[str, ApiKey] = {}
    for store in stores:
        keys |= await store.keys.by_id([ban.key_id for ban in bans])
    return [(ban, keys.get(ban.key_id)) for ban in sorted(bans, key=lambda ban: ban.until, reverse=True)]


async def lift_ban(store: Store, gate: Gate, key_id: str, by: Actor) -> AfterBan:
    """Lifts a ban and returns whether the key's next request will be admitted.

    Writes the audit entry first, so that a crash cannot leave a lifted ban without an entry. Raises OperatorError if
    there is no such key, or if it is not banned, and Unavailable if the store or the gate is down.
    """
    key = await store.keys.get(key_id)
    if key is None:
        raise OperatorError(f"no key has the id {key_id}")
    (windows,) = await gate.windows([key_id])
    if not windows.bans:
        raise OperatorError(f"{key_id} is not banned, so there is nothing to lift")
    await store.audit.record(by.entry("lift ban", key_id, f"until {when(windows.ban_end / SECOND)}"))
    await gate.lift(key_id)
    return after_ban(key, windows, by.at)
