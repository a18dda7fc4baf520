"""Keeps the pages and keys in the workers' caches consistent with the store.

Every write declares what kinds of changes it makes: adding animals, editing animals, changing keys, or none of these.
After the commit, but before the caller receives the result, `announce` increments a version in the gate for each kind
of change. Every request passes through the gate, which checks that the worker's copy of the key is up to date and
returns the current versions for added and edited animals. A worker therefore never uses a cached page or key that is
older than the last announced change.

A process can die between committing a change and announcing it. For this reason, a transaction that edits animals or
changes keys also increments a number in the single-row table `changes`. New animals need no such number, because ids
only increase. Each process remembers the highest id and the numbers that have been announced. A read that finds a later
change calls `check` before it returns. Otherwise, a client could see a change that disappears when another worker
serves the next request from its cache. `check` is also called once a second.

See docs/decisions/0015 for the rationale.
"""

import math
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from petstore.changes import CHANGES, Change

CHECK_SECONDS = 1.0
# How many seconds a cached page or key remains valid. The limit is needed because changes that are made directly with
# SQL are not announced.
KEPT_SECONDS = 60.0

NOTHING: tuple[Change, ...] = ()
ADDED: tuple[Change, ...] = ("added",)
EDITED: tuple[Change, ...] = ("edited",)
KEYS: tuple[Change, ...] = ("keys",)

Announce = Callable[[Collection[Change]], Awaitable[None]]


class Numbers(NamedTuple):
    """The highest animal id, the number of edits and the number of key changes, in the same order as CHANGES."""

    added: int = 0
    edited: int = 0
    keys: int = 0


_COUNTED: tuple[Change, ...] = ("edited", "keys")  # the columns of the table `changes`


def numbers_sql(schema: str) -> str:
    """Builds a query that yields a single row with the fields of `Numbers`."""
    return f"SELECT coalesce((SELECT max(id) FROM {schema}.pets), 0), {', '.join(_COUNTED)} FROM {schema}.changes"


def numbering_sql(schema: str, changes: Collection[Change]) -> str:
    """Returns a statement that increments the numbers for these changes, or an empty string if there are none.

    A transaction must execute this statement last, because it locks the row in `changes`. Waiting for another lock
    while holding that one could cause a deadlock.
    """
    raised = ", ".join(f"{change} = {change} + 1" for change in _COUNTED if change in changes)
    return f"UPDATE {schema}.changes SET {raised}" if raised else ""


class Freshness:
    """Tracks which changes in one environment have been announced, as far as this process knows."""

    def __init__(self, announce: Announce, read_numbers: Callable[[], Awaitable[Numbers]]) -> None:
        """`announce` is the function that increments versions in the gate."""
        self._announce = announce
        self._read_numbers = read_numbers
        self.announced = Numbers()  # all changes up to these numbers have been announced
        self.checked = self.due = -math.inf  # when `check_at` last ran, and when it is next due

    async def announce(self, changes: Collection[Change], reached: Numbers) -> None:
        """Announces changes that have just been committed. Raises Unavailable on failure.

        `reached` contains the numbers as of the end of the transaction. Ids and numbers are committed in ascending
        order, so this also announces all earlier changes of the same kinds.
        """
        if changes:
            await self._announce(changes)
            known = zip(CHANGES, self.announced, reached, strict=True)
            self.announced = Numbers(*(max(old, new) if kind in changes else old for kind, old, new in known))

    async def check(self) -> None:
        """Reads the current numbers from the store, and announces each kind of change whose number has changed.

        A number can go down if the newest animal is removed or a backup is restored. Raises Unavailable if the store
        or the gate fails.
        """
        found = await self._read_numbers()
        if found != self.announced:
            differs = zip(CHANGES, found, self.announced, strict=True)
            await self._announce([change for change, new, old in differs if new != old])
            self.announced = found

    async def check_at(self, now: float) -> None:
        """Calls `check`, and records when the next check is due. Raises Unavailable if the check fails.

        Callers skip this call while `checked <= now < due`. The lower bound forces a new check if the clock has been
        set back. Only the request that makes the call waits for the check.
        """
        self.checked, self.due = now, now + CHECK_SECONDS
        try:
            await self.check()
        except BaseException:
            self.due = -math.inf
            raise
