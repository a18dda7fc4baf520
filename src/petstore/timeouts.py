"""The deadline of a request, and the timeouts of its steps, which are fractions of the deadline.

The deadline limits how long clients wait (see `web/deadlines.py`). The timeouts do not have to add up to it. They make
each step release its resources and report the cause before the deadline passes.
"""

from typing import NamedTuple


class Timeouts(NamedTuple):
    """A deadline and its timeouts, in seconds. Defaults to the deadline for clients."""

    deadline: float = 2.0

    @property
    def reserve(self) -> float:
        """A write with less time than this is refused before it joins a batch."""
        return 0.15 * self.deadline

    @property
    def call(self) -> float:
        """For one call to the store, including the wait for a connection."""
        return 0.75 * self.deadline

    @property
    def step(self) -> float:
        """For one lock, connection or statement of the store."""
        return 0.6 * self.deadline

    @property
    def disconnect(self) -> float:
        """For closing a connection to the store."""
        return 0.1 * self.deadline

    @property
    def gate(self) -> float:
        """For one batch of the gate in Redis. After this timeout, the fallback is used."""
        return 0.5 * self.deadline

    @property
    def gate_connection(self) -> float:
        """For connecting to Redis within a batch."""
        return 0.8 * self.gate

    @property
    def gate_sentinel(self) -> float:
        """For one Sentinel. If three do not respond, there is still time for a fourth within a batch."""
        return 0.3 * self.gate


CLIENT = Timeouts()
OPERATOR = Timeouts(25.0)  # the machine may be busy, or a migration may run
