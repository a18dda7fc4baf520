"""How `petstore keys` prints keys and secrets."""

from typing import Any

import click
import msgspec

from petstore.admin.key_status import KeyStatus
from petstore.audit import AuditEntry
from petstore.cli.output import print_fields, print_json, printing_secret, program, when


def state_text(status: KeyStatus) -> str:
    """The state, with the end of a ban."""
    return f"banned until {when(status.banned_until)}" if status.state == "banned" else status.state


def as_json(status: KeyStatus) -> dict[str, Any]:
    more = {name: value for name, value in status._asdict().items() if name != "key"}
    return {**msgspec.structs.asdict(status.key), **more}


def print_changed(status: KeyStatus, json: bool, text: str) -> None:
    if json:
        print_json(as_json(status))
    else:
        click.echo(f"{status.key.id} {text}.")


def print_key(
    status: KeyStatus, rotation: AuditEntry | None, json: bool, *, secret: dict[str, str] | None = None
) -> None:
    """`secret` describes the secret that the key was identified by."""
    key = status.key
    if json:
        print_json({**as_json(status), "rotated": rotation.at if rotation else None, **(secret or {})})
        return
    print_fields(
        {
            "id": key.id, "name": key.name, **(secret or {}), "state": state_text(status),
            "environment": key.environment, "plan": key.plan,
            "this minute": f"{status.minute_used:,} of {key.per_minute:,}",
            "today": f"{status.day_used:,} of {key.per_day:,}", "last used": when(key.last_used),
            "scopes": ", ".join(key.scopes), "created": when(key.created), "expires": when(key.expires),
            "rotated": f"{when(rotation.at)}, {rotation.detail}" if rotation else "never",
            "suspended": when(key.suspended), "revoked": when(key.revoked),
        }
    )  # fmt: skip


def print_secret(status: KeyStatus, secret: str, json: bool, **more: float) -> None:
    key = status.key
    with printing_secret(f"{program()} keys rotate {key.id} makes a new one"):
        if json:
            print_json({"id": key.id, **as_json(status), "key": secret, **more})
            return
        click.echo(f"{key.id} ({key.environment}, {key.plan}: {key.per_minute:,} a minute, {key.per_day:,} a day)")
        click.echo(f"\n  {secret}\n\nKeep it safe: it is not shown again.")
