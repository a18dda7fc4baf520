"""The deadline for a request, and the timeouts for its steps, which are fractions of the deadline.

The deadline limits how long clients wait (see `web/deadlines.py`). The timeouts do not have to add up to the deadline.
They let each step release its resources and report the cause of a delay before the deadline passes.
"""

from typing import NamedTuple


class Timeouts(NamedTuple):
    """A deadline and its timeouts, in seconds. The default is the deadline for requests from clients."""

    deadline: float = 2.0

    @property
    def reserve(self) -> float:
        """The least time a write can have left before its deadline and still join a batch. With less, it is refused."""
        return 0.15 * self.deadline

    @property
    def call(self) -> float:
        """The timeout for one call to the store, including waiting for a connection."""
        return 0.75 * self.deadline

    @property
    def step(self) -> float:
        """The timeout for one step in the store: acquiring a lock or a connection, or running a statement."""
        return 0.6 * self.deadline

    @property
    def disconnect(self) -> float:
        """The timeout for closing a connection to the store."""
        return 0.1 * self.deadline

    @property
    def gate(self) -> float:
        """The timeout for one batch of calls to Redis. After a timeout, Redis is considered unavailable."""
        return 0.5 * self.deadline

    @property
    def gate_connection(self) -> float:
        """The timeout for connecting to Redis. Connecting also counts toward the timeout for the batch."""
        return 0.8 * self.gate

    @property
    def gate_sentinel(self) -> float:
        """The timeout for querying one Sentinel. If three do not respond, there is still time to query a fourth."""
        return 0.3 * self.gate


CLIENT = Timeouts()
OPERATOR = Timeouts(25.0)  # longer than for clients, because the machine may be busy or a migration may be running
