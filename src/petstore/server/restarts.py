"""When a worker that died is started again: at once, or after a pause that grows while its start fails."""

import math

CRASHES_MAX = 5
PAUSE_MIN, PAUSE_MAX = 0.1, 30.0  # seconds


class Restarts:
    """A slot is the place of one worker. `now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.due: dict[int, float] = {}  # slots without a worker, and when each gets its next one
        self._crashes_of: dict[int, int] = {}  # of each slot, in a row
        self._crashes = 0  # of all slots, since a worker died that had really started

    def worked(self, slot: int) -> None:
        """A worker died that had really started."""
        self._crashes = 0
        self._crashes_of.pop(slot, None)

    def crashed(self, slot: int, now: float) -> float:
        """A worker did not really start. Returns the seconds until its slot gets the next one."""
        self._crashes += 1
        crashes = self._crashes_of[slot] = self._crashes_of.get(slot, 0) + 1
        pause = min(PAUSE_MAX, PAUSE_MIN * 2.0 ** min(crashes - 1, 16))
        self.due[slot] = now + pause
        return pause

    @property
    def keep_failing(self) -> bool:
        return self._crashes >= CRASHES_MAX

    def take_due(self, now: float) -> list[int]:
        """The slots that get a worker now."""
        due = [slot for slot, at in self.due.items() if at <= now]
        for slot in due:
            del self.due[slot]
        return due

    def seconds_to_next(self, now: float) -> float:
        """Infinite when no slot waits."""
        return max(0.0, min(self.due.values(), default=math.inf) - now)
