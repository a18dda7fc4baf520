"""`petstore audit`: lists audit entries."""

from typing import Any

import click
import msgspec

from petstore.audit import ACTIONS, AuditEntry
from petstore.cli.admin import existing_data, run
from petstore.cli.options import Command, Int64, backend_options, env_option, json_option, settings_from
from petstore.cli.output import print_json, print_more, print_table, when


@click.command(cls=Command)
@backend_options
@env_option
@click.option("--who", default="", metavar="NAME", help="Only entries whose actor contains this.")
@click.option("--what", type=click.Choice(ACTIONS), help="Only entries of this action.")
@click.option(
    "--search", "text", default="", metavar="TEXT", help="Only entries whose subject or detail contains this."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N", help="How many at most."
)
@click.option("--before", type=Int64(1), metavar="NUMBER", help="Only entries below this number.")
@json_option
def audit(
    environment: Any, who: str, what: str | None, text: str, limit: int, before: int | None, as_json: bool, **where: Any
) -> None:
    """Show who did what and when, newest first. Sign-ins and operators are in the log of live.

    \b
    Examples:
      petstore audit --who ada
      petstore audit --what "revoke key" --env staging
      petstore audit --search key_7Gh2kP0sLq9Z
    """

    async def work() -> tuple[list[tuple[int, AuditEntry]], bool]:
        async with existing_data(settings_from(where)) as backends:
            found: list[tuple[int, AuditEntry]] = []
            start, more = before, True
            while more and len(found) < limit:
                some, start, more = await backends.stores[environment].find_entries(
                    before=start, limit=limit - len(found), actor=who, action=what or "", text=text
                )
                found += some
            return found, more

    found, more = run(work())
    if as_json:
        print_json([{"number": number, **msgspec.structs.asdict(entry)} for number, entry in found])
    else:
        print_table(
            ["number", "when", "who", "what", "subject", "detail"],
            [[str(number), when(e.at), e.actor, e.action, e.subject, e.detail] for number, e in found],
            f"No entries in {environment} yet." if not (who or what or text or before) else "No matching entries.",
            whole=["subject"],
        )
    if more:
        print_more(f"--before {found[-1][0]}")
