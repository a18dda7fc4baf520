"""Creates audit entries for the operator who performs an action."""

from collections.abc import Callable
from typing import NamedTuple

from petstore.audit import AuditEntry


class Actor(NamedTuple):
    name: str
    clock: Callable[[], float]

    def new_entry(self, action: str, subject: str, detail: str = "") -> AuditEntry:
        """Returns an audit entry with the current time."""
        return AuditEntry(self.clock(), self.name, action, subject, detail)
