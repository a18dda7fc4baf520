"""The audit log: what operators did."""

from typing import NamedTuple

import msgspec

# Actions whose subject is the id of a key, or of an animal.
KEY_ACTIONS = (
    "create key", "update key", "suspend key", "resume key", "identify key", "rotate key", "end old secret",
    "revoke key", "lift ban",
)  # fmt: skip
PET_ACTIONS = ("add animal", "update animal", "set status", "remove animal", "restore animal")
# Every action of an operator, by its name in the audit log.
ACTIONS = (
    *KEY_ACTIONS, *PET_ACTIONS, "import", "undo import",
    "sign in", "sign-in failed", "sign out", "sign out everywhere",
    "add operator", "set role", "revoke operator",
    "backup", "restore", "copy",
)  # fmt: skip


class AuditEntry(msgspec.Struct, frozen=True):
    """One action of one operator. `at` is in Unix seconds."""

    at: float
    actor: str
    action: str
    subject: str
    detail: str = ""


class FoundEntries(NamedTuple):
    """Entries with their numbers, newest first. With `more`, the search continues below the number `searched_to`."""

    entries: list[tuple[int, AuditEntry]]
    searched_to: int
    more: bool
