"""Freshness: whether a page or a key that a worker keeps in memory is still what the store would say.

Every write names what it changes: animals added, animals edited, keys, or nothing. It commits, then `announce` raises
the version of each change in the gate, then its caller is answered. Every request passes the gate, which compares the
version of the keys and returns those of the animals: so a worker uses nothing older than the last announced change.

A process can die between its commit and its announcement. So a transaction that edits animals or changes keys also
raises a number, in the one row of the table `changes`; new animals have the highest ids. Each process remembers up to
which id and numbers it knows everything to be announced. A read that finds more calls `check` before its caller is
answered: otherwise one client would see a change here, and another one, served from memory elsewhere, would not see it
afterwards. Once a second `check` is also called without a read.

docs/decisions/0015 says why it is done this way.
"""

import math
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from petstore.changes import CHANGES, Change

CHECK_SECONDS = 1.0
# Nothing is used from memory for longer: a change that was made by hand in the database raises no number.
KEPT_SECONDS = 60.0

NOTHING: tuple[Change, ...] = ()
ADDED: tuple[Change, ...] = ("added",)
EDITED: tuple[Change, ...] = ("edited",)
KEYS: tuple[Change, ...] = ("keys",)

Announce = Callable[[Collection[Change]], Awaitable[None]]


class Numbers(NamedTuple):
    """How far the changes of a store go: the highest id, the number of edits, the number of key changes.

    In the order of CHANGES.
    """

    added: int = 0
    edited: int = 0
    keys: int = 0


_COUNTED: tuple[Change, ...] = ("edited", "keys")  # the columns of the table `changes`


def numbers_sql(schema: str) -> str:
    """The statement that returns the Numbers of a store."""
    return f"SELECT coalesce((SELECT max(id) FROM {schema}.pets), 0), {', '.join(_COUNTED)} FROM {schema}.changes"


def numbering_sql(schema: str, changes: Collection[Change]) -> str:
    """The statement by which a transaction raises the numbers of its changes. Empty when they have none.

    To be executed last: a transaction that has locked this row waits for no other one, so it cannot deadlock.
    """
    raised = ", ".join(f"{change} = {change} + 1" for change in _COUNTED if change in changes)
    return f"UPDATE {schema}.changes SET {raised}" if raised else ""


class Freshness:
    """What this process knows to be announced, of one environment."""

    def __init__(self, announce: Announce, read_numbers: Callable[[], Awaitable[Numbers]]) -> None:
        """`announce` raises versions in the gate."""
        self._announce = announce
        self._read_numbers = read_numbers
        self.announced = Numbers()  # all changes up to these, as far as this process knows
        self.checked = self.due = -math.inf  # the last `check` at a time, and the next

    async def announce(self, changes: Collection[Change], reached: Numbers) -> None:
        """To be called after a commit that made these changes, and before its caller is answered. Raises Unavailable.

        `reached` are the numbers in that transaction, after it has raised its own. Earlier changes of the same kind are
        announced with it, because ids and numbers are committed in their order.
        """
        if changes:
            await self._announce(changes)
            known = zip(CHANGES, self.announced, reached, strict=True)
            self.announced = Numbers(*(max(old, new) if kind in changes else old for kind, old, new in known))

    async def check(self) -> None:
        """Read the numbers, and announce what differs. Raises Unavailable.

        They can also be lower: the last animal was removed, or the store was restored to an earlier state.
        """
        found = await self._read_numbers()
        if found != self.announced:
            differs = zip(CHANGES, found, self.announced, strict=True)
            await self._announce([change for change, new, old in differs if new != old])
            self.announced = found

    async def check_at(self, now: float) -> None:
        """Call `check`, for this second: to be called unless `checked <= now < due`. Raises Unavailable.

        One request does so, and others go on meanwhile. A clock that was set back makes it due.
        """
        self.checked, self.due = now, now + CHECK_SECONDS
        try:
            await self.check()
        except BaseException:
            self.due = -math.inf
            raise
