"""`petstore audit`: lists audit entries."""

import click
import msgspec

from petstore.audit import ACTIONS, KEY_ACTIONS, AuditEntry
from petstore.backends import Backends
from petstore.cli.data import on_data
from petstore.cli.options import Command, WholeNumber, env_option, limit_option
from petstore.cli.output import Output, Table
from petstore.keys import Environment
from petstore.wording import when


@click.command(cls=Command)
@env_option
@click.option("--who", default="", metavar="NAME", help="Show only entries whose actor's name contains NAME.")
@click.option("--what", type=click.Choice(ACTIONS), metavar="ACTION",
              help="Show only entries with this action, such as \"create key\" or \"sign in\".")  # fmt: skip
@click.option("--search", "text", default="", metavar="TEXT",
              help="Show only entries whose subject or detail contains TEXT.")  # fmt: skip
@limit_option(50)
@click.option(
    "--before", type=WholeNumber(1), metavar="NUMBER", help="Show only entries with a number lower than NUMBER."
)
@on_data("read")
async def audit(
    backends: Backends, environment: Environment, who: str, what: str | None, text: str, limit: int, before: int | None
) -> Output:
    """Show who did what and when, newest entries first.

    Sign-ins and changes to operators are recorded in the live environment's audit log.

    \b
    Examples:
      petstore audit --who ada
      petstore audit --what "revoke key" --env staging
      petstore audit --search key_7Gh2kP0sLq9Z
    """
    found: list[tuple[int, AuditEntry]] = []
    start, more = before, True
    while more and len(found) < limit:
        some, start, more = await backends.stores[environment].audit.find(
            before=start, limit=limit - len(found), actor=who, action=what or "", text=text
        )
        found += some
    key_ids = {entry.subject for _, entry in found if entry.action in KEY_ACTIONS}
    keys = await backends.stores[environment].keys.by_id(sorted(key_ids))
    names = [keys[entry.subject].name if entry.subject in keys else "" for _, entry in found]
    table = Table(
        ["number", "when", "who", "what", "subject", "name", "detail"],
        [
            [str(number), when(e.at), e.actor, e.action, e.subject, name, e.detail]
            for (number, e), name in zip(found, names, strict=True)
        ],
        "No matching entries." if who or what or text or before else f"No audit entries in {environment} yet.",
        whole=["subject"],
    )
    data = [
        {"number": number, **msgspec.structs.asdict(entry), "name": name}
        for (number, entry), name in zip(found, names, strict=True)
    ]
    return Output(data, table, more=f"--before {found[-1][0]}" if more else "")
