"""The audit log, which records operators' actions."""

from typing import Literal, NamedTuple, get_args

import msgspec

# The subject of each of these actions is a key id.
KeyAction = Literal[
    "create key", "update key", "suspend key", "resume key", "identify key", "rotate key", "end old secret",
    "revoke key", "lift ban",
]  # fmt: skip
# The subject of each of these actions is an animal's id, or the id of a removal.
PetAction = Literal["add animal", "update animal", "set status", "remove animal", "restore animal"]
OtherAction = Literal[
    "import", "undo import",
    "sign in", "sign-in failed", "sign out", "sign out everywhere",
    "add operator", "set role", "revoke operator",
    "backup", "restore", "copy",
]  # fmt: skip
Action = KeyAction | PetAction | OtherAction

KEY_ACTIONS: tuple[KeyAction, ...] = get_args(KeyAction)
PET_ACTIONS: tuple[PetAction, ...] = get_args(PetAction)
ACTIONS: tuple[Action, ...] = (*KEY_ACTIONS, *PET_ACTIONS, *get_args(OtherAction))


class AuditEntry(msgspec.Struct, frozen=True):
    """One action by an operator. `at` is in Unix seconds."""

    at: float
    actor: str
    action: Action
    subject: str
    detail: str = ""


class Actor(NamedTuple):
    """Who performs an act, and when. `at` is in Unix seconds."""

    name: str
    at: float

    def entry(self, action: Action, subject: str, detail: str = "") -> AuditEntry:
        return AuditEntry(self.at, self.name, action, subject, detail)


class FoundEntries(NamedTuple):
    """Matching entries with their numbers, newest first.

    If `more` is true, the search can continue with the entries whose numbers are below `searched_to`.
    """

    entries: list[tuple[int, AuditEntry]]
    searched_to: int
    more: bool
