"""How long things may take: the one deadline of a request, and the shares of it that single steps have.

The deadline keeps the promise to clients: see `web/deadlines.py`. The shares do not have to add up. They make a step
release what it holds, and let the part that hangs name the cause before the deadline passes.
"""

from typing import NamedTuple


class Timeouts(NamedTuple):
    """In seconds. The default is a client's deadline."""

    deadline: float = 2.0

    @property
    def reserve(self) -> float:
        """A write with less time left is refused before it joins a batch."""
        return 0.15 * self.deadline

    @property
    def call(self) -> float:
        """For one call to the store, with its wait for a connection."""
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
        """For one batch of the gate in Redis. Afterwards the fallback decides."""
        return 0.5 * self.deadline

    @property
    def gate_connection(self) -> float:
        """For a connection to Redis, which is made within a batch."""
        return 0.8 * self.gate

    @property
    def gate_sentinel(self) -> float:
        """For one Sentinel. Three that do not answer leave time for a fourth within one batch."""
        return 0.3 * self.gate


CLIENT = Timeouts()
OPERATOR = Timeouts(25.0)  # the machine may be busy, or a migration may run
