"""Keeps the pages and keys that workers cache consistent with the store.

Every write says what it changes: animals added, animals edited, keys, or nothing. After the commit and before the
caller gets its result, `announce` raises the version of each change in the gate. Every request passes the gate, which
compares the version of the keys and returns the versions of the animals. A worker therefore never uses a cached page or
key that is older than the last announced change.

A process can die between its commit and its announcement. For this case, a transaction that edits animals or changes
keys also raises a number in the only row of the table `changes`. New animals are recognised by their ids, which are the
highest. Each process remembers the id and the numbers up to which all changes are announced. A read that finds a later
change calls `check` before it returns. Otherwise, one client could see a change that another worker, which uses its
cache, does not show afterwards. `check` is also called once a second.

See docs/decisions/0015 for the reasons.
"""

import math
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from petstore.changes import CHANGES, Change

CHECK_SECONDS = 1.0
# The longest time that a cached page or key is used. Changes made with SQL directly in the database raise no number.
KEPT_SECONDS = 60.0

NOTHING: tuple[Change, ...] = ()
ADDED: tuple[Change, ...] = ("added",)
EDITED: tuple[Change, ...] = ("edited",)
KEYS: tuple[Change, ...] = ("keys",)

Announce = Callable[[Collection[Change]], Awaitable[None]]


class Numbers(NamedTuple):
    """The highest id, the number of edits and the number of key changes, in the order of CHANGES."""

    added: int = 0
    edited: int = 0
    keys: int = 0


_COUNTED: tuple[Change, ...] = ("edited", "keys")  # the columns of the table `changes`


def numbers_sql(schema: str) -> str:
    """Returns a query for the Numbers of a store."""
    return f"SELECT coalesce((SELECT max(id) FROM {schema}.pets), 0), {', '.join(_COUNTED)} FROM {schema}.changes"


def numbering_sql(schema: str, changes: Collection[Change]) -> str:
    """Returns the statement that raises the numbers of these changes, or an empty string if they have none.

    A transaction must execute it last. A transaction that has locked this row then waits for no other lock, so it
    cannot deadlock.
    """
    raised = ", ".join(f"{change} = {change} + 1" for change in _COUNTED if change in changes)
    return f"UPDATE {schema}.changes SET {raised}" if raised else ""


class Freshness:
    """The changes in one environment that this process knows to be announced."""

    def __init__(self, announce: Announce, read_numbers: Callable[[], Awaitable[Numbers]]) -> None:
        """`announce` raises versions in the gate."""
        self._announce = announce
        self._read_numbers = read_numbers
        self.announced = Numbers()  # all changes up to these are announced
        self.checked = self.due = -math.inf  # when `check_at` last ran, and when it is next due

    async def announce(self, changes: Collection[Change], reached: Numbers) -> None:
        """Announces changes after their commit, before the caller gets its result. Raises Unavailable.

        `reached` has the numbers that the transaction saw after it had raised its own. Ids and numbers are committed in
        ascending order, so this also announces all earlier changes of the same kind.
        """
        if changes:
            await self._announce(changes)
            known = zip(CHANGES, self.announced, reached, strict=True)
            self.announced = Numbers(*(max(old, new) if kind in changes else old for kind, old, new in known))

    async def check(self) -> None:
        """Reads the numbers from the store, and announces changes to them. Raises Unavailable.

        A number can also be lower, after the last animal was removed or a backup was restored.
        """
        found = await self._read_numbers()
        if found != self.announced:
            differs = zip(CHANGES, found, self.announced, strict=True)
            await self._announce([change for change, new, old in differs if new != old])
            self.announced = found

    async def check_at(self, now: float) -> None:
        """Calls `check` at most once a second. Must be called unless `checked <= now < due`. Raises Unavailable.

        Only one request waits for the check. If the clock was set back, a check is due.
        """
        self.checked, self.due = now, now + CHECK_SECONDS
        try:
            await self.check()
        except BaseException:
            self.due = -math.inf
            raise
