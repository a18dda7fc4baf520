"""Creates the audit entries of the operator who acts."""

from collections.abc import Callable
from typing import NamedTuple

from petstore.audit import AuditEntry


class Actor(NamedTuple):
    name: str
    clock: Callable[[], float]

    def new_entry(self, action: str, subject: str, detail: str = "") -> AuditEntry:
        """Returns an audit entry for an action that happens now."""
        return AuditEntry(self.clock(), self.name, action, subject, detail)
