"""`petstore keys`: issue, list, show, rotate and revoke."""

import re
import time
from typing import Any

import click
import msgspec

from petstore.cli import common_options, deed, env_option, json_option, print_fields, print_json, print_table, run, when
from petstore.errors import OperatorError
from petstore.keys import SCOPES, ApiKey, digest_of, mint, new_key
from petstore.plans import PLANS, Limits
from petstore.service import Backends
from petstore.settings import Settings
from petstore.store import Store

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class Duration(click.ParamType[float]):
    """A number with a unit, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"([0-9]{1,9})([smhdw])", str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a duration; write 90d, 24h, 30m or 10s", param, ctx)
        return float(match[1]) * UNITS[match[2]]


@click.group()
def keys() -> None:
    """Issue, list, show, rotate and revoke API keys.

    A key's secret is shown once, when it is made; only a hash is kept. A running service obeys at once.
    """


@keys.command()
@common_options
@env_option
@click.option("--plan", type=click.Choice(list(PLANS)), required=True, help="The plan, which sets the limits.")
@click.option("--name", default="", help="For your own eyes.")
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
    if (per_minute is None) != (per_day is None):
        raise OperatorError("--per-minute and --per-day go together")
    limits = Limits(per_minute, per_day) if per_minute and per_day else None
    now = time.time()
    key = new_key(
        environment, plan, now=now, name=name, scopes=scopes or SCOPES, limits=limits,
        expires=now + expires if expires is not None else None,
    )  # fmt: skip
    secret = mint(environment)

    async def work() -> None:
        async with Backends(Settings(**where)) as backends:
            await backends.stores[key.environment].add_key(key, digest_of(secret), deed("create key", key.id, plan))

    run(work())
    _print_secret(key, secret, as_json)


@keys.command(name="list")
@common_options
@click.option("--env", "environment", type=click.Choice(["live", "staging"]), help="Only this environment.")
@json_option
def list_(environment: str | None, as_json: bool, **where: Any) -> None:
    """List keys with plan, state and last use."""

    async def work() -> list[ApiKey]:
        found: list[ApiKey] = []
        async with Backends(Settings(**where)) as backends:
            for name, store in backends.stores.items():
                after = ""
                while environment in (None, name) and (page := await store.keys(after=after)):
                    found += page
                    after = page[-1].id
        return sorted(found, key=lambda key: key.created)

    found = run(work())
    if as_json:
        print_json([_as_json(key) for key in found])
        return
    now = time.time()
    print_table(
        ["id", "env", "plan", "scopes", "state", "last used", "name"],
        [
            [k.id, k.environment, k.plan, ",".join(k.scopes), k.state(now), when(k.last_used), k.name]
            for k in found
        ],
        "No keys yet: petstore keys create --plan free",
    )  # fmt: skip


@keys.command()
@click.argument("key_id", metavar="ID")
@common_options
@json_option
def show(key_id: str, as_json: bool, **where: Any) -> None:
    """Show one key."""

    async def work() -> ApiKey:
        async with Backends(Settings(**where)) as backends:
            return (await _find(backends, key_id))[1]

    key = run(work())
    if as_json:
        print_json(_as_json(key))
        return
    print_fields(
        {
            "id": key.id, "name": key.name, "environment": key.environment, "plan": key.plan,
            "limits": f"{key.per_minute:,} a minute, {key.per_day:,} a day", "scopes": ", ".join(key.scopes),
            "state": key.state(time.time()), "created": when(key.created), "expires": when(key.expires),
            "revoked": when(key.revoked), "last used": when(key.last_used),
        }
    )  # fmt: skip


@keys.command()
@click.argument("key_id", metavar="ID")
@common_options
@click.option(
    "--overlap", type=Duration(), default="0s", metavar="DURATION", help="How long the old secret still works."
)
@json_option
def rotate(key_id: str, overlap: float, as_json: bool, **where: Any) -> None:
    """Give a key a new secret and print it, once. Id, plan and counters stay.

    \b
    Example:
      petstore keys rotate key_7Gh2kP0sLq9Z --overlap 24h
    """

    async def work() -> tuple[ApiKey, str]:
        async with Backends(Settings(**where)) as backends:
            store, key = await _find(backends, key_id)
            if not key.usable(time.time()):
                raise OperatorError(f"{key_id} is {key.state(time.time())}: create a new key instead")
            secret = mint(key.environment)
            done = deed("rotate key", key_id, f"overlap {overlap:.0f} s")
            await store.rotate_key(key_id, digest_of(secret), done.at + overlap, done)
            return key, secret

    _print_secret(*run(work()), as_json)


@keys.command()
@click.argument("key_id", metavar="ID")
@common_options
@json_option
def revoke(key_id: str, as_json: bool, **where: Any) -> None:
    """End a key at once, for good."""

    async def work() -> ApiKey:
        async with Backends(Settings(**where)) as backends:
            store, key = await _find(backends, key_id)
            if key.revoked is not None:
                raise OperatorError(f"{key_id} was revoked already, on {when(key.revoked)}")
            await store.revoke_key(key_id, deed("revoke key", key_id))
            return (await _find(backends, key_id))[1]

    key = run(work())
    if as_json:
        print_json(_as_json(key))
    else:
        click.echo(f"{key.id} is revoked: from the next request on it is refused.")


async def _find(backends: Backends, key_id: str) -> tuple[Store, ApiKey]:
    for store in backends.stores.values():
        key = await store.key(key_id)
        if key is not None:
            return store, key
    raise OperatorError(f"no key has the id {key_id}; petstore keys list shows them")


def _as_json(key: ApiKey) -> dict[str, Any]:
    return {**msgspec.structs.asdict(key), "state": key.state(time.time())}


def _print_secret(key: ApiKey, secret: str, as_json: bool) -> None:
    if as_json:
        print_json({"id": key.id, "key": secret, **_as_json(key)})
        return
    click.echo(f"{key.id} ({key.environment}, {key.plan}: {key.per_minute:,} a minute, {key.per_day:,} a day)")
    click.echo(f"\n  {secret}\n\nKeep it safe: it is not shown again.")
