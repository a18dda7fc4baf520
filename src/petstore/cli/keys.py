"""`petstore keys`: issues, lists, shows, changes, rotates and revokes keys."""

import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import click
import msgspec

from petstore.admin.actions import Admin, KeyUpdate
from petstore.admin.key_listing import SORTS, KeyFilter, list_keys
from petstore.admin.key_status import KEY_STATES, KeyStatus, statuses
from petstore.audit import AuditEntry
from petstore.backends import Backends
from petstore.cli import key_output
from petstore.cli.admin import admin, admin_of_key, data_to_create, existing_data, key_of, run
from petstore.cli.completion import key_ids
from petstore.cli.key_output import print_changed, print_key, print_secret, state_text
from petstore.cli.options import (
    Duration,
    Group,
    backend_options,
    confirm,
    env_option,
    json_option,
    settings_from,
    yes_option,
)
from petstore.cli.output import print_json, print_more, print_table, program, when
from petstore.errors import OperatorError
from petstore.keys import ENVIRONMENTS, SCOPES, ApiKey, secret_in, well_formed
from petstore.plans import PLANS, Limits

SECRET_MAX = 1_000_000  # characters that identify reads

_plan = click.Choice(list(PLANS))
_scope_option = click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="Repeatable. [default: read and write]"
)
_limit_options = (
    click.option("--per-day", type=click.IntRange(min=1), metavar="N", help="Enterprise: requests per day."),
    click.option("--per-minute", type=click.IntRange(min=1), metavar="N", help="Enterprise: requests per minute."),
)


@click.group(cls=Group)
def keys() -> None:
    """Issue, list, show, change, rotate and revoke API keys.

    A key's secret is shown once, when it is created; only its hash is stored. A running service obeys from the next
    request on. A key's id is not secret: keys list shows it.
    """


@keys.command()
@backend_options
@env_option
@click.option("--plan", type=_plan, required=True, help="The plan, which sets the limits.")
@click.option("--name", default="", help="A name for operators; clients never see it.")
@_scope_option
@click.option("--expires", type=Duration(least=1), metavar="DURATION", help="For example 90d. [default: never]")
@_limit_options[1]
@_limit_options[0]
@json_option
def create(
    plan: Any, environment: Any, name: str, scopes: Any, expires: float | None,
    per_minute: int | None, per_day: int | None, as_json: bool, **where: Any,
) -> None:  # fmt: skip
    """Issue a key and print its secret, once.

    \b
    Examples:
      petstore keys create --plan free --name "Ada's laptop"
      petstore keys create --plan pro --env staging --scope read --expires 90d
      petstore keys create --plan enterprise --per-minute 5000 --per-day 2000000
    """
    if plan != "enterprise" and (per_minute or per_day):
        raise OperatorError(f"the {plan} plan has fixed limits; --plan enterprise takes limits of its own")
    if plan == "enterprise" and not (per_minute and per_day):
        raise OperatorError("an enterprise key needs its own limits: --per-minute N --per-day N")
    limits = Limits(per_minute, per_day) if per_minute and per_day else None

    async def work() -> tuple[KeyStatus, str]:
        async with data_to_create(settings_from(where)) as backends:
            key, secret = await admin(backends, environment).create_key(
                plan, name=name, scopes=scopes or SCOPES, limits=limits, life=expires
            )
            return await _status(backends, key), secret

    print_secret(*run(work()), as_json)


@keys.command(name="list")
@backend_options
@click.option("--env", "environment", type=click.Choice(ENVIRONMENTS), help="Only this environment.")
@click.option("--plan", type=_plan, help="Only keys of this plan.")
@click.option("--state", type=click.Choice(KEY_STATES), help="Only keys in this state.")
@click.option("--search", "text", default="", metavar="TEXT", help="Only keys whose name or id contains this.")
@click.option("--sort", type=click.Choice(list(SORTS)), default="created", show_default=True,
              help="The order: newest, by name, last used first, or most used today first.")  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, metavar="N", help="How many at most."
)
@click.option("--before", metavar="ID", help="With --sort created: only keys older than this one.")
@json_option
def list_(
    environment: Any, plan: Any, state: Any, text: str, sort: str, limit: int, before: str | None, as_json: bool,
    **where: Any,
) -> None:  # fmt: skip
    """List keys with plan, state, use of the day and last use.

    \b
    Examples:
      petstore keys list --plan pro --state banned
      petstore keys list --search ada --sort last-used
    """
    if before and sort != "created":
        raise OperatorError("--before goes only with --sort created; give a higher --limit")
    wanted = KeyFilter(plan=plan, state=state, text=text)

    async def work() -> list[KeyStatus]:
        async with existing_data(settings_from(where)) as backends:
            last = await key_of(backends, before) if before else None
            stores = [backends.stores[each] for each in ([environment] if environment else ENVIRONMENTS)]
            return await list_keys(stores, backends.gate, wanted, sort, limit + 1, last, time.time())

    found = run(work())
    shown = found[:limit]
    if as_json:
        print_json([key_output.as_json(status) for status in shown])
    else:
        print_table(
            ["id", "env", "plan", "scopes", "state", "today", "last used", "name"],
            [
                [s.key.id, s.key.environment, s.key.plan, ",".join(s.key.scopes), state_text(s),
                 f"{s.day_used:,} of {s.key.per_day:,}", when(s.key.last_used), s.key.name]
                for s in shown
            ],
            "No matching keys." if text or before or plan or state else
            f"No keys yet: {program()} keys create --plan free" + (f" --env {environment}" if environment else ""),
        )  # fmt: skip
    if len(found) > limit:
        print_more(f"--before {shown[-1].key.id}" if sort == "created" else "a higher --limit")


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=key_ids)
@backend_options
@json_option
def show(key_id: str, as_json: bool, **where: Any) -> None:
    """Show one key: its state, its use, its limits. ID is the key's id, as keys list shows it."""

    async def work() -> tuple[KeyStatus, AuditEntry | None]:
        async with existing_data(settings_from(where)) as backends:
            return await _status_and_rotation(backends, await key_of(backends, key_id))

    print_key(*run(work()), as_json)


@keys.command()
@backend_options
@json_option
def identify(as_json: bool, **where: Any) -> None:
    """Show the key that a secret belongs to, for example a leaked one.

    Reads the secret from standard input, or asks for it without showing it. It is in no argument, history or log.
    Of a longer text, such as a leaked file, the first secret counts.

    \b
    Example:
      petstore keys identify < leaked.txt
    """
    secret = _read_secret()
    if not secret:
        raise OperatorError("there is no secret on standard input")
    found_in = [environment for environment in ENVIRONMENTS if well_formed(secret, environment)]
    if not found_in:
        raise OperatorError("this is not a key of Petstore: its form or its checksum is wrong")

    async def work() -> tuple[KeyStatus, AuditEntry | None, float | None] | None:
        async with existing_data(settings_from(where)) as backends:
            found = await admin(backends, found_in[0]).identify_key(secret)
            return None if found is None else (*await _status_and_rotation(backends, found[0]), found[1])

    found = run(work())
    if found is None:
        raise OperatorError("no key has this secret")
    status, rotation, until = found
    end = "" if until is None else "ended" if until <= time.time() else f"valid until {when(until)}"
    print_key(status, rotation, as_json, secret={"secret": end or "valid"})


def _read_secret() -> str:
    if sys.stdin.isatty():
        return secret_in(str(click.prompt("Secret", hide_input=True, err=True)))
    return secret_in(sys.stdin.read(SECRET_MAX))


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=key_ids)
@backend_options
@click.option("--plan", type=_plan, help="The new plan, which sets the limits.")
@click.option("--name", help="The new name.")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="The new scopes; repeatable.")
@click.option("--expires", metavar="DURATION", help="The new end from now, for example 90d, or never.")
@_limit_options[1]
@_limit_options[0]
@json_option
def update(
    key_id: str, plan: Any, name: str | None, scopes: Any, expires: str | None,
    per_minute: int | None, per_day: int | None, as_json: bool, **where: Any,
) -> None:  # fmt: skip
    """Change a key. Its secret stays, and what it has used of its limits stays used.

    ID is the key's id, as keys list shows it.

    \b
    Examples:
      petstore keys update key_7Gh2kP0sLq9Z --plan business
      petstore keys update key_7Gh2kP0sLq9Z --expires never --scope read
      petstore keys update key_7Gh2kP0sLq9Z --plan enterprise --per-minute 5000 --per-day 2000000
    """
    if plan is None and name is None and not scopes and expires is None and per_minute is None and per_day is None:
        raise OperatorError("nothing to change: give --plan, --name, --scope, --expires, --per-minute or --per-day")
    changes = KeyUpdate(
        plan=plan, name=name, scopes=scopes or None, per_minute=per_minute, per_day=per_day, expires=_end(expires)
    )
    status = _change(key_id, where, lambda admin: admin.update_key(key_id, changes))
    if as_json:
        print_json(key_output.as_json(status))
        return
    key = status.key
    click.echo(f"{key.id}: {key.plan}, {key.per_minute:,} a minute, {key.per_day:,} a day, {'+'.join(key.scopes)}.")
    click.echo(f"State: {state_text(status)}; expires: {when(key.expires)}.")


def _end(expires: str | None) -> float | msgspec.UnsetType | None:
    if expires is None:
        return msgspec.UNSET
    if expires == "never":
        return None
    return time.time() + Duration(least=1).convert(expires, _param("expires"), click.get_current_context())


def _param(name: str) -> click.Parameter:
    return next(param for param in click.get_current_context().command.params if param.name == name)


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=key_ids)
@backend_options
@json_option
def suspend(key_id: str, as_json: bool, **where: Any) -> None:
    """Refuse a key until it is resumed. ID is the key's id, as keys list shows it."""
    status = _change(key_id, where, lambda admin: admin.suspend_key(key_id))
    print_changed(status, as_json, "is suspended: the service refuses it until it is resumed")


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=key_ids)
@backend_options
@json_option
def resume(key_id: str, as_json: bool, **where: Any) -> None:
    """Accept a suspended key again. ID is the key's id, as keys list shows it."""
    status = _change(key_id, where, lambda admin: admin.resume_key(key_id))
    print_changed(status, as_json, f"is resumed, and {state_text(status)}")


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=key_ids)
@backend_options
@click.option(
    "--overlap", type=Duration(), metavar="DURATION",
    help="For how long the old secret stays valid, for example 24h. Without it, the command asks first.",
)  # fmt: skip
@yes_option
@json_option
def rotate(key_id: str, overlap: float | None, yes: bool, as_json: bool, **where: Any) -> None:
    """Give a key a new secret and print it, once. Id, plan and counters stay.

    Without --overlap the old secret ends at once. ID is the key's id, as keys list shows it.

    \b
    Example:
      petstore keys rotate key_7Gh2kP0sLq9Z --overlap 24h
    """
    if overlap is None:
        confirm(f"The old secret of {key_id} ends at once, without an overlap. Rotate it?", yes)

    async def work() -> tuple[KeyStatus, str, float]:
        async with existing_data(settings_from(where)) as backends:
            key, secret, until = await (await admin_of_key(backends, key_id)).rotate_key(key_id, overlap or 0.0)
            return await _status(backends, key), secret, until

    status, secret, until = run(work())
    print_secret(status, secret, as_json, old_secret_until=until)
    if not as_json:
        click.echo(f"The old secret {f'is valid until {when(until)}' if overlap else f'ended at {when(until)}'}.")


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=key_ids)
@backend_options
@json_option
def revoke(key_id: str, as_json: bool, **where: Any) -> None:
    """End a key at once, for good. ID is the key's id, as keys list shows it."""
    status = _change(key_id, where, lambda admin: admin.revoke_key(key_id))
    print_changed(status, as_json, "is revoked: the service refuses it from the next request on")


def _change(key_id: str, where: dict[str, Any], action: Callable[[Admin], Awaitable[ApiKey]]) -> KeyStatus:
    async def work() -> KeyStatus:
        async with existing_data(settings_from(where)) as backends:
            return await _status(backends, await action(await admin_of_key(backends, key_id)))

    return run(work())


async def _status(backends: Backends, key: ApiKey) -> KeyStatus:
    (status,) = await statuses(backends.gate, [key], time.time())
    return status


async def _status_and_rotation(backends: Backends, key: ApiKey) -> tuple[KeyStatus, AuditEntry | None]:
    return await _status(backends, key), await admin(backends, key.environment).last_rotation(key.id)
