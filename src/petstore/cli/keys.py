"""`petstore keys`: issue, list, show, rotate and revoke keys; set limits."""

import time
from typing import Any

import click
import msgspec

from petstore.audit import AuditEntry
from petstore.cli.admin import admin, admin_of_key, key_of, run
from petstore.cli.options import Duration, backend_options, env_option, json_option, settings_from
from petstore.cli.output import counted, print_fields, print_json, print_more, print_table, printing_secret, when
from petstore.errors import OperatorError
from petstore.keys import ENVIRONMENTS, SCOPES, ApiKey
from petstore.plans import PLANS, Limits
from petstore.service import Backends


@click.group()
def keys() -> None:
    """Issue, list, show, rotate and revoke API keys; set their limits.

    A key's secret is shown once, when it is created; only its hash is stored. A running service obeys from the next
    request on. A key's id is not secret: keys list shows it.
    """


@keys.command()
@backend_options
@env_option
@click.option("--plan", type=click.Choice(list(PLANS)), required=True, help="The plan, which sets the limits.")
@click.option("--name", default="", help="A name for operators; clients never see it.")
@click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="Repeatable. [default: read and write]"
)
@click.option("--expires", type=Duration(), metavar="DURATION", help="For example 90d. [default: never]")
@click.option("--per-minute", type=click.IntRange(min=1), metavar="N", help="Enterprise: requests per minute.")
@click.option("--per-day", type=click.IntRange(min=1), metavar="N", help="Enterprise: requests per day.")
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

    async def work() -> tuple[ApiKey, str]:
        async with Backends(settings_from(where)) as backends:
            return await admin(backends, environment).create_key(
                plan, name=name, scopes=scopes or SCOPES, limits=limits, life=expires
            )

    _print_secret(*run(work()), as_json)


@keys.command(name="list")
@backend_options
@click.option("--env", "environment", type=click.Choice(["live", "staging"]), help="Only this environment.")
@click.option("--search", "text", default="", metavar="TEXT", help="Only keys whose name or id contains this.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, metavar="N", help="How many at most."
)
@click.option("--before", metavar="ID", help="Only keys older than this one.")
@json_option
def list_(environment: Any, text: str, limit: int, before: str | None, as_json: bool, **where: Any) -> None:
    """List keys with plan, state and last use, newest first."""

    async def work() -> list[ApiKey]:
        async with Backends(settings_from(where)) as backends:
            last = await key_of(backends, before) if before else None
            start = (last.created, last.id) if last else None
            found: list[ApiKey] = []
            for each in [environment] if environment else ENVIRONMENTS:
                found += await backends.stores[each].newest_keys(before=start, limit=limit + 1, text=text)
            return sorted(found, key=lambda key: (key.created, key.id), reverse=True)

    found = run(work())
    shown = found[:limit]
    if as_json:
        print_json([_as_json(key) for key in shown])
    else:
        now = time.time()
        print_table(
            ["id", "env", "plan", "scopes", "state", "last used", "name"],
            [
                [k.id, k.environment, k.plan, ",".join(k.scopes), k.state(now), when(k.last_used), k.name]
                for k in shown
            ],
            "No keys yet: petstore keys create --plan free" if not (text or before) else "No matching keys.",
        )  # fmt: skip
    if len(found) > limit:
        print_more(f"--before {shown[-1].id}")


@keys.command()
@click.argument("key_id", metavar="ID")
@backend_options
@json_option
def show(key_id: str, as_json: bool, **where: Any) -> None:
    """Show one key. ID is the key's id, as keys list shows it."""

    async def work() -> tuple[ApiKey, AuditEntry | None]:
        async with Backends(settings_from(where)) as backends:
            key = await key_of(backends, key_id)
            return key, await admin(backends, key.environment).last_rotation(key.id)

    key, rotation = run(work())
    if as_json:
        print_json({**_as_json(key), "rotated": rotation.at if rotation else None})
        return
    print_fields(
        {
            "id": key.id, "name": key.name, "environment": key.environment, "plan": key.plan,
            "limits": f"{key.per_minute:,} a minute, {key.per_day:,} a day", "scopes": ", ".join(key.scopes),
            "state": key.state(time.time()), "created": when(key.created), "expires": when(key.expires),
            "rotated": f"{when(rotation.at)}, {rotation.detail}" if rotation else "never",
            "revoked": when(key.revoked), "last used": when(key.last_used),
        }
    )  # fmt: skip


@keys.command()
@click.argument("key_id", metavar="ID")
@backend_options
@click.option(
    "--overlap", type=Duration(), default="0s", metavar="DURATION",
    help="For how long the old secret stays valid, for example 24h. [default: 0s]",
)  # fmt: skip
@json_option
def rotate(key_id: str, overlap: float, as_json: bool, **where: Any) -> None:
    """Give a key a new secret and print it, once. Id, plan and counters stay.

    ID is the key's id, as keys list shows it.

    \b
    Example:
      petstore keys rotate key_7Gh2kP0sLq9Z --overlap 24h
    """

    async def work() -> tuple[ApiKey, str]:
        async with Backends(settings_from(where)) as backends:
            return await (await admin_of_key(backends, key_id)).rotate_key(key_id, overlap)

    until = time.time() + overlap
    key, secret = run(work())
    until = min(until, key.expires or until)
    _print_secret(key, secret, as_json, old_secret_until=until)
    if not as_json:
        click.echo(f"The old secret {f'works until {when(until)}' if overlap else 'is refused from now on'}.")


@keys.command()
@click.argument("key_id", metavar="ID")
@backend_options
@json_option
def revoke(key_id: str, as_json: bool, **where: Any) -> None:
    """End a key at once, for good. ID is the key's id, as keys list shows it."""

    async def work() -> ApiKey:
        async with Backends(settings_from(where)) as backends:
            return await (await admin_of_key(backends, key_id)).revoke_key(key_id)

    key = run(work())
    if as_json:
        print_json(_as_json(key))
    else:
        click.echo(f"{key.id} is revoked: the service refuses it from the next request on.")


@keys.command(name="set-limits")
@click.argument("key_id", metavar="ID")
@click.option("--per-minute", type=click.IntRange(min=1), metavar="N", required=True, help="Requests per minute.")
@click.option("--per-day", type=click.IntRange(min=1), metavar="N", required=True, help="Requests per day.")
@backend_options
@json_option
def set_limits(key_id: str, per_minute: int, per_day: int, as_json: bool, **where: Any) -> None:
    """Change the limits of an enterprise key. What it has used so far still counts.

    ID is the key's id, as keys list shows it.
    """

    async def work() -> ApiKey:
        async with Backends(settings_from(where)) as backends:
            return await (await admin_of_key(backends, key_id)).set_limits(key_id, Limits(per_minute, per_day))

    key = run(work())
    if as_json:
        print_json(_as_json(key))
    else:
        click.echo(f"{key.id} may make {counted(key.per_minute, 'request')} a minute and {key.per_day:,} a day.")


def _as_json(key: ApiKey) -> dict[str, Any]:
    return {**msgspec.structs.asdict(key), "state": key.state(time.time())}


def _print_secret(key: ApiKey, secret: str, as_json: bool, **more: float) -> None:
    with printing_secret(f"petstore keys rotate {key.id} makes a new one"):
        if as_json:
            print_json({"id": key.id, "key": secret, **_as_json(key), **more})
            return
        click.echo(f"{key.id} ({key.environment}, {key.plan}: {key.per_minute:,} a minute, {key.per_day:,} a day)")
        click.echo(f"\n  {secret}\n\nKeep it safe: it is not shown again.")
