"""The deadline for a request, and the timeouts for its steps, which are fractions of the deadline.

The deadline limits how long clients wait (see `web/deadlines.py`). The timeouts do not have to add up to it. With them,
each step can release its resources and report the cause before the deadline passes.
"""

from typing import NamedTuple


class Timeouts(NamedTuple):
    """A deadline and its timeouts, in seconds. The default is the deadline for clients."""

    deadline: float = 2.0

    @property
    def reserve(self) -> float:
        """A write with less time left than this is refused instead of being added to a batch."""
        return 0.15 * self.deadline

    @property
    def call(self) -> float:
        """The timeout for one call to the store, including waiting for a connection."""
        return 0.75 * self.deadline

    @property
    def step(self) -> float:
        """The timeout for acquiring one lock or connection, or for running one statement, in the store."""
        return 0.6 * self.deadline

    @property
    def disconnect(self) -> float:
        """The timeout for closing a connection to the store."""
        return 0.1 * self.deadline

    @property
    def gate(self) -> float:
        """The timeout for sending one batch of calls to Redis. After this, the gate uses the fallback."""
        return 0.5 * self.deadline

    @property
    def gate_connection(self) -> float:
        """The timeout for connecting to Redis, as part of a batch."""
        return 0.8 * self.gate

    @property
    def gate_sentinel(self) -> float:
        """The timeout for one Sentinel. If three do not respond, there is still time to try one more."""
        return 0.3 * self.gate


CLIENT = Timeouts()
OPERATOR = Timeouts(25.0)  # the machine may be busy, or a migration may be running
