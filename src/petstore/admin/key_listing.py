"""Lists of keys: filtered by plan and state, in an order that an operator chooses."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from petstore.admin.key_status import KeyState, KeyStatus, statuses
from petstore.gate import Gate
from petstore.keys import ApiKey, KeyQuery
from petstore.plans import Plan
from petstore.store import KeyStore

PAGE = 1_000

# The order of each sort, least first. Python's sort is stable, so equal keys stay newest first.
SORTS: dict[str, Callable[[KeyStatus], Any]] = {
    "created": lambda status: 0,
    "name": lambda status: status.key.name.casefold(),
    "last-used": lambda status: -(status.key.last_used or 0.0),
    "usage": lambda status: -status.day_used,
}


class KeyFilter(NamedTuple):
    """`text` is a part of the name or of the id."""

    plan: Plan | None = None
    state: KeyState | None = None
    text: str = ""

    def fits(self, status: KeyStatus) -> bool:
        return self.plan in (None, status.key.plan) and self.state in (None, status.state)


async def list_keys(
    stores: Sequence[KeyStore], gate: Gate, wanted: KeyFilter, sort: str, limit: int, before: ApiKey | None, now: float
) -> list[KeyStatus]:
    """Up to `limit` keys; `before` is the last key of the previous page, newest first. Raises Unavailable.

    Every order but `created` reads all keys.
    """
    found: list[KeyStatus] = []
    for store in stores:
        found += await _newest(store, gate, wanted, limit if sort == "created" else None, before, now)
    found.sort(key=lambda status: (status.key.created, status.key.id), reverse=True)
    return sorted(found, key=SORTS[sort])[:limit]


async def _newest(
    store: KeyStore, gate: Gate, wanted: KeyFilter, limit: int | None, before: ApiKey | None, now: float
) -> list[KeyStatus]:
    """Matching keys of one store, newest first; without a limit all of them."""
    found: list[KeyStatus] = []
    last = before
    while limit is None or len(found) < limit:
        page = await store.find_keys(KeyQuery(wanted.text), now=now, after=last, limit=PAGE)
        found += [status for status in await statuses(gate, page, now) if wanted.fits(status)]
        if len(page) < PAGE:
            break
        last = page[-1]
    return found
