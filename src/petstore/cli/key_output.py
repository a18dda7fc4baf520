"""How `petstore keys` prints keys and secrets."""

from typing import Any

import msgspec

from petstore.admin.key_status import KeyStatus
from petstore.audit import AuditEntry
from petstore.cli.output import Output, program, when


def state_text(status: KeyStatus) -> str:
    """The state, with the end of a ban."""
    return f"banned until {when(status.banned_until)}" if status.state == "banned" else status.state


def key_values(status: KeyStatus) -> dict[str, Any]:
    more = {name: value for name, value in status._asdict().items() if name != "key"}
    return {**msgspec.structs.asdict(status.key), **more}


def one_key(status: KeyStatus, rotation: AuditEntry | None, **secret: str) -> Output:
    """`secret` describes the secret that the key was identified by."""
    key = status.key
    fields = {
        "id": key.id, "name": key.name, **secret, "state": state_text(status),
        "environment": key.environment, "plan": key.plan,
        "this minute": f"{status.minute_used:,} of {key.per_minute:,}",
        "today": f"{status.day_used:,} of {key.per_day:,}", "last used": when(key.last_used),
        "scopes": ", ".join(key.scopes), "created": when(key.created), "expires": when(key.expires),
        "rotated": f"{when(rotation.at)}, {rotation.detail}" if rotation else "never",
        "suspended": when(key.suspended), "revoked": when(key.revoked),
    }  # fmt: skip
    return Output({**key_values(status), "rotated": rotation.at if rotation else None, **secret}, fields)


def new_secret(status: KeyStatus, secret: str, *sentences: str, **more: float) -> Output:
    key = status.key
    return Output(
        {**key_values(status), "key": secret, **more},
        f"{key.id} ({key.environment}, {key.plan}: {key.per_minute:,} a minute, {key.per_day:,} a day)",
        f"\n  {secret}\n\nKeep it safe: it is not shown again.",
        *sentences,
        remedy=f"{program()} keys rotate {key.id} makes a new one",
    )
