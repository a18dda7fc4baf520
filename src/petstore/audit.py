"""The audit log, which records operators' actions."""

from typing import NamedTuple

import msgspec

# The subject of each of these actions is a key id.
KEY_ACTIONS = (
    "create key", "update key", "suspend key", "resume key", "identify key", "rotate key", "end old secret",
    "revoke key", "lift ban",
)  # fmt: skip
# The subject of each of these actions is an animal's id.
PET_ACTIONS = ("add animal", "update animal", "set status", "remove animal", "restore animal")
# Every action that can appear in the audit log.
ACTIONS = (
    *KEY_ACTIONS, *PET_ACTIONS, "import", "undo import",
    "sign in", "sign-in failed", "sign out", "sign out everywhere",
    "add operator", "set role", "revoke operator",
    "backup", "restore", "copy",
)  # fmt: skip


class AuditEntry(msgspec.Struct, frozen=True):
    """One action by an operator. `at` is in Unix seconds."""

    at: float
    actor: str
    action: str
    subject: str
    detail: str = ""


class FoundEntries(NamedTuple):
    """Matching entries with their numbers, newest first.

    If `more` is true, the search can continue with the entries whose numbers are below `searched_to`.
    """

    entries: list[tuple[int, AuditEntry]]
    searched_to: int
    more: bool
