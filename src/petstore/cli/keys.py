"""`petstore keys`: creates, lists, shows, changes, rotates and revokes keys."""

import math
import shlex
import sys
import time
from typing import Any

import click
import msgspec

from petstore.backends import Backends
from petstore.cli.addresses import recorded_service
from petstore.cli.completion import key_ids
from petstore.cli.data import act, actor, key_of, on_data, store_of_key
from petstore.cli.options import (
    Duration,
    Group,
    WholeNumber,
    confirm,
    data_options,
    env_option,
    limit_option,
    yes_option,
)
from petstore.cli.output import Output, Table
from petstore.cli.suggestions import as_typed
from petstore.errors import OperatorError
from petstore.keys import (
    ENVIRONMENTS,
    LIMIT_MAX,
    SCOPES,
    ApiKey,
    Environment,
    KeyChanges,
    Scope,
    mint,
    new_key,
    newest_number,
    old_secret_until,
    secret_in,
    well_formed,
)
from petstore.operators import could_be_token
from petstore.plans import PLANS, Limits, Plan
from petstore.reports.key_status import KEY_STATES, ORDERS, KeyOrder, KeyState, KeyStatus, list_keys, status_of
from petstore.wording import duration_in_words, printable, when

SECRET_MAX = 1_000_000  # the maximum number of characters that `identify` reads
HISTORY_MAX = 20  # the maximum number of audit entries to show for a key; JSON output has no maximum

_plan = click.Choice(list(PLANS))
_key_argument = click.argument("key_id", metavar="ID", shell_complete=key_ids)
_per_day_option = click.option("--per-day", type=WholeNumber(1, LIMIT_MAX), metavar="N",
                               help="Maximum requests per day (enterprise plan only).")  # fmt: skip
_per_minute_option = click.option("--per-minute", type=WholeNumber(1, LIMIT_MAX), metavar="N",
                                  help="Maximum requests per minute (enterprise plan only).")  # fmt: skip


@click.group(cls=Group)
def keys() -> None:
    """Create, list, show, change, rotate and revoke API keys.

    Each secret is shown only once, when it is created, because only its hash is stored. Key ids are not secret. To see
    them, use petstore keys list. Changes take effect with the next request to a running service.
    """


@keys.command()
@env_option
@click.option("--plan", type=_plan, required=True, help="The plan, which determines the key's limits.")
@click.option("--name", default="", help="The key's name. Shown only to operators.")
@click.option("--contact", default="", metavar="TEXT", help="Who to contact about this key. Shown only to operators.")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True,
              help="What the key is allowed to do. Repeatable. [default: read and write]")  # fmt: skip
@click.option(
    "--expires",
    type=Duration(least=1),
    metavar="DURATION",
    help="How long the key is valid, for example 90d. [default: never expires]",
)
@_per_minute_option
@_per_day_option
@data_options
def create(
    plan: Plan, environment: Environment, name: str, contact: str, scopes: tuple[Scope, ...], expires: float | None,
    per_minute: int | None, per_day: int | None, as_json: bool, **where: Any,
) -> None:  # fmt: skip
    """Create a key and print its secret, which is shown only once.

    Unless --json is given, the command also prints an example curl command to standard error.

    \b
    Examples:
      petstore keys create --plan free --name "Ada's laptop" --contact ada@example.com
      petstore keys create --plan pro --env staging --scope read --expires 90d
      petstore keys create --plan enterprise --per-minute 5000 --per-day 2000000
    """
    if plan != "enterprise" and (per_minute or per_day):
        raise OperatorError(f"the {plan} plan has fixed limits; --per-minute and --per-day require --plan enterprise")
    if plan == "enterprise" and not (per_minute and per_day):
        raise OperatorError("an enterprise key needs its own limits; set them with --per-minute N and --per-day N")
    limits = Limits(per_minute, per_day) if per_minute and per_day else None

    async def work(backends: Backends) -> Output:
        by, secret = actor(backends.clock()), mint(environment)
        key = new_key(
            environment, plan, now=by.at, name=name, contact=contact, scopes=scopes or SCOPES, limits=limits,
            expires=by.at + expires if expires else None,
        )  # fmt: skip
        await backends.stores[environment].keys.create(key, secret, by)
        given = {
            "name": key.name or "none", "contact": key.contact or "none", "scopes": ", ".join(key.scopes),
            "expires": f"in {duration_in_words(expires)}, {when(key.expires)}" if expires else "never",
        }  # fmt: skip
        made.append((key.environment, secret))
        return await _new_secret(backends, key, secret, given)

    made: list[tuple[Environment, str]] = []
    act(where, work, access="create").print(as_json)
    if not as_json:
        click.echo(f"Try it: {recorded_service(where['data']).curl_line(*made[0])}", err=True)


@keys.command(name="list")
@click.option("--env", "environment", type=click.Choice(ENVIRONMENTS), help="Show only this environment.")
@click.option("--plan", type=_plan, help="Show only keys on this plan.")
@click.option("--state", type=click.Choice(KEY_STATES), help="Show only keys in this state.")
@click.option("--search", "text", default="", metavar="TEXT",
              help="Show only keys whose name, contact or id contains TEXT.")  # fmt: skip
@click.option("--expiring", type=Duration(least=1), metavar="DURATION",
              help="Show only keys that expire within this time, for example 30d.")  # fmt: skip
@click.option("--sort", type=click.Choice(list(ORDERS)), default="created", show_default=True,
              help="Sort by this value: names in ascending order, all other values in descending order.")  # fmt: skip
@limit_option(100, most=100_000)
@click.option("--before", metavar="ID", help="Show only keys created before this key. Requires --sort created.")
@on_data("read")
async def list_(
    backends: Backends, environment: Environment | None, plan: Plan | None, state: KeyState | None, text: str,
    expiring: float | None, sort: KeyOrder, limit: int, before: str | None,
) -> Output:  # fmt: skip
    """List keys with their plan, state, usage and expiry.

    \b
    Examples:
      petstore keys list --plan pro --state banned
      petstore keys list --search ada --sort last-used
      petstore keys list --expiring 30d
    """
    if before and sort != "created":
        raise OperatorError("--before requires --sort created; with other sort orders, use a higher --limit")
    last = await key_of(backends, before) if before else None
    stores = [backends.stores[each] for each in ([environment] if environment else ENVIRONMENTS)]
    now = time.time()
    expires_by = None if expiring is None else now + expiring
    found = await list_keys(stores, backends.gate, text, plan, state, sort, limit + 1, last, now, expires_by)
    shown = found[:limit]
    rows = [
        [s.key.id, s.key.environment, s.key.plan, ",".join(s.key.scopes), _state_text(s.key, s),
         f"{s.day_used:,} of {s.key.per_day:,}", when(s.key.last_used), when(s.key.expires), s.key.name]
        for s in shown
    ]  # fmt: skip
    wanted = f" --env {environment}" if environment else ""
    empty = as_typed(f"No keys yet. Create one with `petstore keys create --plan free{wanted}`.")
    if text or before or plan or state or expiring:
        empty = "No matching keys."
    more = ""
    if len(found) > limit:
        more = f"--before {shown[-1].key.id}" if sort == "created" else "a higher --limit"
    columns = ["id", "env", "plan", "scopes", "state", "today", "last used", "expires", "name"]
    return Output([_key_values(status.key, status) for status in shown], Table(columns, rows, empty), more=more)


@keys.command()
@_key_argument
@on_data("read")
async def show(backends: Backends, key_id: str) -> Output:
    """Show a key's state, recent errors and history.

    ID is the key's id, as shown by petstore keys list. With --json, each recent error includes the request id.
    """
    return await _one_key(backends, await key_of(backends, key_id))


@keys.command()
@data_options
def identify(as_json: bool, **where: Any) -> None:
    """Show which key a secret belongs to.

    The command reads the secret from standard input, which keeps the secret out of arguments, shell history and logs.
    On a terminal, it prompts for the secret without displaying it. The input can contain other text, such as the rest
    of a leaked file. The command uses the first secret that it finds.

    \b
    Example:
      petstore keys identify < leaked.txt
    """
    secret = _read_secret()
    if not secret:
        raise OperatorError("no secret was found on standard input")
    if could_be_token(secret):
        operator = act(where, lambda backends: backends.stores["live"].operators.identify(secret))
        raise OperatorError(
            f"this is the token of operator {printable(operator.name)}, not a key's secret; to revoke it, run"
            f" `petstore operators revoke {shlex.quote(operator.name)}`"
        )
    environment = next((each for each in ENVIRONMENTS if well_formed(secret, each)), None)
    if environment is None:
        raise OperatorError("this is not a Petstore secret: its format or checksum is wrong")

    async def work(backends: Backends) -> Output:
        found = await backends.stores[environment].keys.identify(secret, actor(backends.clock()))
        if found is None:
            raise OperatorError("this secret does not belong to any key")
        key, until = found
        end = "" if until is None else "ended" if until <= time.time() else f"valid until {when(until)}"
        return await _one_key(backends, key, secret=end or "valid")

    act(where, work, access="write").print(as_json)


def _read_secret() -> str:
    if sys.stdin.isatty():
        return secret_in(str(click.prompt("Secret", hide_input=True, err=True)))
    return secret_in(sys.stdin.read(SECRET_MAX))


@keys.command()
@_key_argument
@click.option("--plan", type=_plan, help="The new plan, which determines the key's limits.")
@click.option("--name", help="The new name.")
@click.option("--contact", metavar="TEXT", help="The new contact. An empty value removes it.")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="The new scopes. Repeatable.")
@click.option("--expires", type=Duration(least=1, never=True), metavar="DURATION",
              help="How long the key is valid from now, for example 90d. Use never to remove the expiry.")  # fmt: skip
@_per_minute_option
@_per_day_option
@on_data("write")
async def update(
    backends: Backends, key_id: str, scopes: tuple[Scope, ...], expires: float | None, **values: Any
) -> Output:
    """Change a key's plan, name, scopes or other settings. The key's secret and counters do not change.

    ID is the key's id, as shown by petstore keys list.

    \b
    Examples:
      petstore keys update key_7Gh2kP0sLq9Z --plan business
      petstore keys update key_7Gh2kP0sLq9Z --expires never --scope read
      petstore keys update key_7Gh2kP0sLq9Z --plan enterprise --per-minute 5000 --per-day 2000000
    """
    changes = {name: value for name, value in (*values.items(), ("scopes", scopes or None)) if value is not None}
    if expires is not None:
        changes["expires"] = None if expires == math.inf else time.time() + expires
    if not changes:
        raise OperatorError(
            "nothing to change; use --plan, --name, --contact, --scope, --expires, --per-minute or --per-day"
        )
    store = await store_of_key(backends, key_id)
    key = await store.keys.update(key_id, KeyChanges(**changes), actor(backends.clock()))
    status = await _status(backends, key)
    return Output(
        _key_values(key, status),
        f"{key.id}: {key.plan}, {key.per_minute:,} a minute, {key.per_day:,} a day, {'+'.join(key.scopes)}.",
        f"State: {_state_text(key, status)}; expires: {when(key.expires)}.",
    )


@keys.command()
@_key_argument
@on_data("write")
async def suspend(backends: Backends, key_id: str) -> Output:
    """Suspend a key. The service refuses all requests with this key until you resume it.

    ID is the key's id, as shown by petstore keys list.
    """
    key = await (await store_of_key(backends, key_id)).keys.suspend(key_id, actor(backends.clock()))
    values = _key_values(key, await _status(backends, key))
    return Output(values, f"{key_id} is suspended. The service refuses all requests with this key until you resume it.")


@keys.command()
@_key_argument
@on_data("write")
async def resume(backends: Backends, key_id: str) -> Output:
    """Resume a suspended key. ID is the key's id, as shown by petstore keys list."""
    key = await (await store_of_key(backends, key_id)).keys.resume(key_id, actor(backends.clock()))
    status = await _status(backends, key)
    return Output(_key_values(key, status), f"{key_id} has been resumed. State: {_state_text(key, status)}.")


@keys.command()
@_key_argument
@click.option("--overlap", type=Duration(), metavar="DURATION", help="How long the old secret keeps working,"
              " for example 24h. [default: it stops working immediately]")  # fmt: skip
@yes_option
@data_options
def rotate(key_id: str, overlap: float | None, yes: bool, as_json: bool, **where: Any) -> None:
    """Replace a key's secret and print the new one. The new secret is shown only once.

    The key's id, plan and counters do not change. ID is the key's id, as shown by petstore keys list.

    Without --overlap, the old secret stops working immediately, so the command asks for confirmation.

    \b
    Example:
      petstore keys rotate key_7Gh2kP0sLq9Z --overlap 24h
    """

    async def newest_secret(backends: Backends) -> int:
        return newest_number(await (await store_of_key(backends, key_id)).keys.secrets(key_id))

    seen = act(where, newest_secret)
    if overlap is None:
        question = "will stop working immediately. Use --overlap 24h to keep it working for a day. Rotate the key?"
        confirm(f"The old secret of {key_id} {question}", yes)

    async def work(backends: Backends) -> Output:
        store = await store_of_key(backends, key_id)
        secret, by = mint(store.environment), actor(backends.clock())
        key, until = await store.keys.rotate(key_id, secret, seen, overlap or 0.0, by)
        end = "The old secret no longer works."
        if overlap:
            end = as_typed(
                f"The old secret works until {when(until)}."
                f" To disable it now, run `petstore keys end-overlap {key.id}`."
            )
        return await _new_secret(backends, key, secret, end, old_secret_until=until)

    act(where, work, access="write").print(as_json)


@keys.command(name="end-overlap")
@_key_argument
@on_data("write")
async def end_overlap(backends: Backends, key_id: str) -> Output:
    """End the overlap after a rotation. The old secret stops working immediately.

    ID is the key's id, as shown by petstore keys list.
    """
    key = await (await store_of_key(backends, key_id)).keys.end_old_secret(key_id, actor(backends.clock()))
    values = _key_values(key, await _status(backends, key))
    return Output(values, f"The old secret of {key_id} no longer works.")


@keys.command()
@_key_argument
@yes_option
@data_options
def revoke(key_id: str, yes: bool, as_json: bool, **where: Any) -> None:
    """Revoke a key permanently. The key stops working immediately. ID is the key's id, as shown by petstore keys list.

    To block a key temporarily, use petstore keys suspend.

    \b
    Example:
      petstore keys revoke key_7Gh2kP0sLq9Z --yes
    """
    key = act(where, lambda backends: key_of(backends, key_id))
    if key.revoked is None:
        named = f"{key_id} ({printable(key.name) or 'no name'}, {key.environment}, {key.plan})"
        confirm(f"{named} will stop working permanently. Its client will need a new key. Revoke it?", yes)

    async def work(backends: Backends) -> Output:
        revoked = await backends.stores[key.environment].keys.revoke(key_id, actor(backends.clock()))
        values = _key_values(revoked, await _status(backends, revoked))
        return Output(values, f"{key_id} is revoked. This takes effect with the next request.")

    act(where, work, access="write").print(as_json)


async def _status(backends: Backends, key: ApiKey) -> KeyStatus | None:
    """Returns the key's status, or None if the gate does not respond.

    Does not raise Unavailable, because a command that has created a secret must print it even during an outage.
    """
    return await status_of(backends.gate, key, time.time())


def _state_text(key: ApiKey, status: KeyStatus | None) -> str:
    """Returns the key's state. If the key is banned, includes the time when the ban ends."""
    if status is None:
        return f"{key.state(time.time())} (Redis is not responding, so the key might also be banned)"
    return f"banned until {when(status.banned_until)}" if status.state == "banned" else status.state


def _key_values(key: ApiKey, status: KeyStatus | None) -> dict[str, Any]:
    if status is None:
        unknown = dict.fromkeys(KeyStatus._fields[2:])
        return {**msgspec.structs.asdict(key), "state": key.state(time.time()), **unknown}
    more = {name: value for name, value in status._asdict().items() if name != "key"}
    return {**msgspec.structs.asdict(key), **more}


async def _one_key(backends: Backends, key: ApiKey, **secret: str) -> Output:
    """Returns the output for one key. `secret` says whether the secret that the operator entered is still valid."""
    status = await _status(backends, key)
    store = backends.stores[key.environment]
    old_until = old_secret_until(await store.keys.secrets(key.id), time.time())
    history = await store.audit.history(key.id)
    errors = await store.usage.recent_errors(key.id)
    rotation = next((entry for _, entry in history if entry.action == "rotate key"), None)
    resumption = next((entry for _, entry in history if entry.action == "resume key"), None)
    suspended = f"resumed {when(resumption.at)}" if resumption and not key.suspended else when(key.suspended)
    minute, day = (f"{status.minute_used:,}", f"{status.day_used:,}") if status else ("?", "?")
    fields = {
        "id": key.id, "name": key.name, "contact": key.contact or "none", **secret, "state": _state_text(key, status),
        "environment": key.environment, "plan": key.plan,
        "this minute": f"{minute} of {key.per_minute:,}",
        "today": f"{day} of {key.per_day:,}", "last used": when(key.last_used),
        "scopes": ", ".join(key.scopes), "created": when(key.created), "expires": when(key.expires),
        "rotated": f"{when(rotation.at)}, {rotation.detail}" if rotation else "never",
        **({"old secret": f"works until {when(old_until)}"} if old_until else {}),
        "suspended": suspended, "revoked": when(key.revoked),
    }  # fmt: skip
    data = {
        **_key_values(key, status), "rotated": rotation.at if rotation else None, **secret,
        "old_secret_until": old_until,
        "history": [{"number": number, **msgspec.structs.asdict(entry)} for number, entry in history],
        "errors": [{name: value for name, value in each._asdict().items() if name != "key_id"} for each in errors],
    }  # fmt: skip
    rows = [[when(entry.at), entry.actor, entry.action, entry.detail] for _, entry in history[:HISTORY_MAX]]
    table = Table(["when", "who", "what", "detail"], rows, "There are no audit entries for this key.")
    older = [as_typed(f"For older entries, run `petstore audit --env {key.environment} --search {key.id}`.")]
    refused = [[when(each.at), str(each.status), each.code, each.operation, each.path] for each in errors]
    columns = ["when", "status", "code", "operation", "path"]
    error_table = Table(columns, refused, "No recent refusals or errors.")
    return Output(
        data, fields, "\nRecent refusals and errors:\n", error_table, "\nHistory:\n", table,
        *(older if len(history) > HISTORY_MAX else ()),
    )  # fmt: skip


async def _new_secret(
    backends: Backends, key: ApiKey, secret: str, *parts: str | dict[str, str], **more: float
) -> Output:
    return Output(
        {**_key_values(key, await _status(backends, key)), "key": secret, **more},
        f"{key.id} ({key.environment}, {key.plan}: {key.per_minute:,} a minute, {key.per_day:,} a day)",
        f"\n  {secret}\n\nKeep this secret safe. It will not be shown again.",
        *parts,
        remedy=f"Create a new secret with `petstore keys rotate {key.id}`.",
    )
