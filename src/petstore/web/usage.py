"""How many requests each key makes, and how many come without one.

Counted here in memory, written to the store now and then, never on the way.
"""

from collections import defaultdict
from itertools import islice

from petstore.ledger import Answer, Ledger, Usage

AT_ONCE = 250  # rows in one transaction: whoever waits to add an animal meanwhile should not feel it


class UsageCounter:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._counts: defaultdict[tuple[str, Answer], int] = defaultdict(int)
        self._last_used: dict[str, float] = {}

    def count(self, key_id: str, answer: Answer, now: float) -> None:
        self._counts[key_id, answer] += 1
        self._last_used[key_id] = now

    async def flush(self, now: float) -> None:
        """Write what was counted since the last time, under the present minute, some keys at a time.

        Raises Unavailable, and keeps what was not written for the next time.
        """
        counts, last_used = self._counts, self._last_used
        self._counts, self._last_used = defaultdict(int), {}
        try:
            while cells := list(islice(counts, AT_ONCE)):
                rows = [Usage(key_id, int(now), answer, counts[key_id, answer]) for key_id, answer in cells]
                used = {key_id: last_used[key_id] for key_id, _ in cells}
                await self._ledger.add_usage(rows, used)
                for cell in cells:
                    del counts[cell]
        except BaseException:
            for cell, n in counts.items():
                self._counts[cell] += n
            self._last_used = last_used | self._last_used
            raise
