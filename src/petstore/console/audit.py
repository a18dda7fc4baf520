"""The audit page, which lists audit entries and filters them by operator, action and text."""

from typing import Any

from petstore.audit import ACTIONS, KEY_ACTIONS, PET_ACTIONS
from petstore.console.pets import restorable
from petstore.console.requests import ConsoleRequest

PAGE_SIZE = 50


async def content(request: ConsoleRequest) -> dict[str, Any]:
    actor, text, action = request.parameter("who").strip(), request.parameter("q").strip(), request.parameter("what")
    if action not in ACTIONS:
        action = ""
    before = request.number("before") or None
    found = await request.store.audit.find(before=before, limit=PAGE_SIZE, actor=actor, action=action, text=text)
    key_ids = {entry.subject for _, entry in found.entries if entry.action in KEY_ACTIONS}
    return {
        "keys": await request.store.keys.by_id(sorted(key_ids)),
        "restorable": await restorable(request, found),
        "actor_filter": actor, "action": action, "q": text, "found": found, "first": before is None,
        "actions": ACTIONS, "pet_actions": PET_ACTIONS,
    }  # fmt: skip
