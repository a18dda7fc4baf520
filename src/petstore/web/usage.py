"""How many requests each key makes, and how many come without one.

Counted here in memory, written to the store now and then, never on the way.
"""

from collections import defaultdict

from petstore.ledger import Answer, Ledger, Usage


class UsageCounter:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._counts: defaultdict[tuple[str, Answer], int] = defaultdict(int)
        self._last_used: dict[str, float] = {}

    def count(self, key_id: str, answer: Answer, now: float) -> None:
        self._counts[key_id, answer] += 1
        self._last_used[key_id] = now

    async def flush(self, now: float) -> None:
        """Write what was counted since the last time, under the present minute.

        Raises Unavailable, and keeps what it has for the next time.
        """
        counts, last_used = self._counts, self._last_used
        if not counts:
            return
        self._counts, self._last_used = defaultdict(int), {}
        try:
            rows = [Usage(key_id, int(now), answer, n) for (key_id, answer), n in counts.items()]
            await self._ledger.add_usage(rows, last_used)
        except BaseException:
            for cell, n in counts.items():
                self._counts[cell] += n
            self._last_used = last_used | self._last_used
            raise
