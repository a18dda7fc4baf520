"""The audit log: what operators did, and the protocol of the log."""

from typing import NamedTuple, Protocol

import msgspec

# Actions whose subject is the id of an animal.
PET_ACTIONS = ("add animal", "update animal", "set status", "remove animal", "restore animal")
# Every action of an operator, by its name in the audit log.
ACTIONS = (
    "create key", "update key", "suspend key", "resume key", "identify key", "rotate key", "revoke key", "lift ban",
    *PET_ACTIONS, "import", "undo import",
    "sign in", "sign-in failed", "sign out", "sign out everywhere",
    "add operator", "set role", "revoke operator",
    "backup", "restore", "copy",
    "set limits",  # of older versions; now a part of "update key"
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


class AuditLog(Protocol):
    """Every method raises Unavailable when the store cannot answer."""

    async def record(self, entry: AuditEntry) -> None: ...

    async def find_entries(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        actor: str = "",
        action: str = "",
        subject: str = "",
        text: str = "",
    ) -> FoundEntries:
        """Entries whose actor contains `actor`, whose action is `action`, whose subject is `subject`, and whose subject
        or detail contains `text`.

        One call searches at most SEARCH_STEP entries.
        """
