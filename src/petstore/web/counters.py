"""What became of the requests to one base address: counted in memory, and never more than that on the way.

One tally serves both readers: once a second its counts are added to the metrics, every few seconds to the usage of
each key in the store.
"""

from bisect import bisect_left
from collections import defaultdict
from itertools import islice
from typing import Literal

from petstore.keys import ApiKey, Environment
from petstore.observability.metrics import ADMISSIONS, PAGE_CACHE, REQUEST_SECONDS, REQUESTS
from petstore.usage import ANONYMOUS, ResponseClass, Usage, UsageStore

Operation = Literal["listPets", "createPet", "getPet", "other", "site"]
BANNED_429 = 4290  # a 429 that is a ban; any other is a limit
AT_ONCE = 250  # rows of usage in one transaction: whoever waits to add an animal meanwhile should not feel it
PER_SECOND = 100_000  # times are counted in steps of 10 µs

# Answers that are a page or an animal: each came from memory or was a miss.
_FROM_PAGES = {("listPets", 200), ("listPets", 304), ("getPet", 200)}
_NOBODY = object()


class Tally:
    """The requests of one key, or of all who have none, for one operation.

    A request's memo keeps the tally it was counted in, so that the next one with the same head finds it by comparing
    one pointer. That `key` is the very record it was looked up for says that the tally is still read.
    """

    __slots__ = ("key", "seconds", "statuses")

    def __init__(self, seconds: defaultdict[int, int]) -> None:
        self.key: object = _NOBODY
        self.statuses: defaultdict[int, int] = defaultdict(int)
        self.seconds = seconds


NO_TALLY = Tally(defaultdict(int))


class Traffic:
    """Without a usage_store: what is outside the base addresses, where nobody's usage is counted."""

    def __init__(self, environment: Environment | Literal["none"], usage_store: UsageStore | None = None) -> None:
        self._environment = environment
        self._usage_store = usage_store
        self._tallies: dict[tuple[str, str, Operation], Tally] = {}
        self._seconds: defaultdict[Operation, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._usage: defaultdict[tuple[str, ResponseClass], int] = defaultdict(int)
        self._last_used: dict[str, float] = {}

    def tally(self, key: ApiKey | None, operation: Operation) -> Tally:
        name = (key.id, key.plan, operation) if key is not None else ("", "none", operation)
        tally = self._tallies.get(name)
        if tally is None:
            tally = self._tallies[name] = Tally(self._seconds[operation])
        tally.key = key
        return tally

    def settle(self, now: float, page_misses: int = 0) -> None:
        """Add what was counted since the last time to the metrics, and to the usage that waits to be written."""
        pages = 0
        for name in list(self._tallies):
            tally = self._tallies[name]
            if not tally.statuses:
                tally.key = _NOBODY  # should a request still hold it, it will look for another
                del self._tallies[name]
                continue
            key_id, plan, operation = name
            for status, n in tally.statuses.items():
                self._add(key_id, plan, operation, status, n)
                pages += n if (operation, status) in _FROM_PAGES else 0
            tally.statuses.clear()
            if key_id:
                self._last_used[key_id] = now
        for operation, seconds in self._seconds.items():
            _observe(operation, seconds)
        if pages:
            PAGE_CACHE.add(self._environment, "hit", by=pages - page_misses)
            PAGE_CACHE.add(self._environment, "miss", by=page_misses)

    def _add(self, key_id: str, plan: str, operation: Operation, status: int, n: int) -> None:
        answer = _answer(status)
        shown = "429" if status == BANNED_429 else str(status)
        REQUESTS.add(self._environment, operation, shown, plan, by=n)
        if self._usage_store is not None:
            self._usage[key_id or ANONYMOUS, answer] += n
        if key_id or (operation != "site" and answer != "server_error"):
            outcome = answer if answer in ("refused", "banned") else "admitted"
            ADMISSIONS.add(self._environment, "key" if key_id else "address", outcome, by=n)

    async def flush(self, now: float) -> None:
        """Write the usage since the last time, under the present minute, some keys at a time.

        Raises Unavailable, and keeps what was not written for the next time.
        """
        if self._usage_store is None:
            return
        usage, last_used = self._usage, self._last_used
        self._usage, self._last_used = defaultdict(int), {}
        try:
            while cells := list(islice(usage, AT_ONCE)):
                rows = [Usage(key_id, int(now), answer, usage[key_id, answer]) for key_id, answer in cells]
                used = {key_id: last_used[key_id] for key_id, _ in cells if key_id in last_used}
                await self._usage_store.add_usage(rows, used)
                for cell in cells:
                    del usage[cell]
        except BaseException:
            for cell, n in usage.items():
                self._usage[cell] += n
            self._last_used = last_used | self._last_used
            raise


def _answer(status: int) -> ResponseClass:
    if status < 400:
        return "ok"
    if status in (429, BANNED_429):
        return "refused" if status == 429 else "banned"
    if status == 401:
        return "unauthorized"
    return "client_error" if status < 500 else "server_error"


def _observe(operation: Operation, seconds: defaultdict[int, int]) -> None:
    cell = REQUEST_SECONDS.cell(operation)
    for step, n in seconds.items():
        took = (max(0, step) + 0.5) / PER_SECOND  # a clock that was set back is no time at all
        cell[bisect_left(REQUEST_SECONDS.bounds, took)] += n
        cell[-1] += n * took
    seconds.clear()
