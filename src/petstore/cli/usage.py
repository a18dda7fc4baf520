"""`petstore usage`: the requests of keys, as a table with a sparkline for each key."""

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import click

from petstore.admin.charts import Bars, key_bars
from petstore.admin.key_status import KeyStatus, statuses
from petstore.backends import Backends
from petstore.cli.admin import existing_data, key_of, run
from petstore.cli.completion import key_ids
from petstore.cli.options import Command, backend_options, env_option, json_option, settings_from
from petstore.cli.output import print_fields, print_json, print_more, print_table, when
from petstore.errors import Unavailable
from petstore.keys import ApiKey
from petstore.maintenance.admissions import collect_admissions
from petstore.usage import SPANS, KeyTotal, Operation, ResponseClass, Span, SpanName, calendar_month

LEVELS = "▁▂▃▄▅▆▇█"
NO_REQUESTS = "·"
OPERATIONS: tuple[Operation, ...] = ("listPets", "createPet", "getPet")
SPARKLINE_MAX = 30  # characters: a line of the table fits a terminal
KEY_ANSWERS: dict[ResponseClass, str] = {
    "ok": "ok",
    "client_error": "4xx",
    "refused": "429",
    "banned": "banned",
    "server_error": "5xx",
}


class Period(NamedTuple):
    """The time that is shown, with its name in a table and in a sentence."""

    span: Span
    end: float
    name: str
    in_words: str


@click.command(cls=Command)
@click.argument("key_id", metavar="[KEY_ID]", required=False, shell_complete=key_ids)
@backend_options
@env_option
@click.option("--span", type=click.Choice(list(SPANS)), help="The time that ends now.  [default: day]")
@click.option("--month", type=click.DateTime(["%Y-%m"]), metavar="YYYY-MM", help="A calendar month (UTC) instead.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="N", help="How many at most."
)
@click.option("--operation", type=click.Choice(OPERATIONS), help="Only requests for this operation.")
@click.option(
    "--after", default="", metavar="KEY_ID", help="Only keys that follow this one: the last of the previous list."
)
@json_option
def usage(
    key_id: str | None, environment: Any, span: SpanName | None, month: datetime | None, limit: int,
    operation: Operation | None, after: str, as_json: bool, **where: Any,
) -> None:  # fmt: skip
    """Show the requests of keys, the busiest first; or of one key, interval by interval.

    KEY_ID is a key's id, as keys list shows it.

    \b
    Examples:
      petstore usage
      petstore usage --month 2026-10 --limit 10000 --json
      petstore usage key_7Gh2kP0sLq9Z --span hour
      petstore usage --operation getPet --span month

    "admitted" is what to bill: all requests but those answered 429. They are counted up to now. A running service adds
    429s and errors every five seconds.
    """
    if span and month:
        raise click.UsageError("choose --span or --month, not both.")
    period = _period(span or "day", month)
    if key_id:
        _one(key_id, period, operation, as_json, where)
    else:
        _busiest(environment, period, limit, operation, after, as_json, where)


def _period(span: SpanName, month: datetime | None) -> Period:
    if month is None:
        return Period(SPANS[span], time.time(), f"last {span}", f"within the last {span}")
    return Period(*calendar_month(month.year, month.month), f"{month:%Y-%m}", f"in {month:%Y-%m}")


def _busiest(
    environment: Any, period: Period, limit: int, operation: Operation | None, after: str, as_json: bool,
    where: dict[str, Any],
) -> None:  # fmt: skip
    span, end, name, in_words = period

    async def work() -> tuple[list[KeyTotal], dict[str, ApiKey], dict[str, Bars]]:
        async with existing_data(settings_from(where)) as backends:
            store = backends.stores[environment]
            if after:
                await key_of(backends, after)
            await _collect(backends)
            totals = await store.busiest(
                interval=span.interval, since=span.since(end), until=int(end) + 1, limit=limit + 1, after=after,
                operation=operation,
            )  # fmt: skip
            ids = [total.key_id for total in totals]
            return totals, await store.keys_by_id(ids), await key_bars(store, ids, span, end, operation)

    totals, keys, bars = run(work())
    shown = totals[:limit]
    # After a restore there may be usage of a key that is unknown again.
    names = {key_id: key.name for key_id, key in keys.items()}
    plans = {key_id: key.plan for key_id, key in keys.items()}
    if as_json:
        print_json(
            [
                {
                    **total._asdict(),
                    "admitted": total.admitted,
                    "name": names.get(total.key_id, ""),
                    "plan": plans.get(total.key_id),
                    "bars": bars[total.key_id].totals(),
                }
                for total in shown
            ]
        )
    else:
        print_table(
            ["key", name, "requests", "admitted", "429", "banned", "name"],
            [
                [t.key_id, sparkline(bars[t.key_id].totals()), f"{t.requests:,}", f"{t.admitted:,}", f"{t.refused:,}",
                 f"{t.banned:,}", names.get(t.key_id, "")]
                for t in shown
            ],
            f"No requests in {environment} {in_words}{' of a key behind this one' if after else ''}.",
        )  # fmt: skip
    if len(totals) > limit:
        print_more(f"--after {shown[-1].key_id}")


def _one(key_id: str, period: Period, operation: Operation | None, as_json: bool, where: dict[str, Any]) -> None:
    span, end, name, in_words = period

    async def work() -> tuple[ApiKey, Bars, KeyStatus]:
        async with existing_data(settings_from(where)) as backends:
            key = await key_of(backends, key_id)
            await _collect(backends, [key_id])
            bars = await key_bars(backends.stores[key.environment], [key_id], span, end, operation)
            return key, bars[key_id], (await statuses(backends.gate, [key], time.time()))[0]

    key, bars, status = run(work())
    today = status.day_used
    admitted = bars.sum_of("ok", "client_error", "server_error")
    if as_json:
        steps = [
            {"start": start, **{answer: bars.requests[answer][bar] for answer in KEY_ANSWERS}}
            for bar, start in enumerate(bars.starts)
        ]
        print_json(
            {"key_id": key.id, "name": key.name, "day_used": today, "admitted": admitted, "seconds": bars.seconds,
             "steps": steps}
        )  # fmt: skip
        return
    print_fields(
        {
            "key": f"{key.id} ({key.environment}, {key.plan})",
            "name": key.name,
            "today": f"{today:,} of {key.per_day:,}",
            name: sparkline(bars.totals()),
            "admitted": f"{admitted:,}",
        }
    )
    rows = [
        [when(start), *(f"{bars.requests[answer][bar]:,}" for answer in KEY_ANSWERS)]
        for bar, (start, total) in enumerate(zip(bars.starts, bars.totals(), strict=True))
        if total
    ]
    click.echo()
    print_table(["from", *KEY_ANSWERS.values()], rows, f"No requests {in_words}.")


async def _collect(backends: Backends, key_ids: Sequence[str] | None = None) -> None:
    """Add what no service has collected yet. Where the gate is down, the usage is shown as it is."""
    with contextlib.suppress(Unavailable):
        await collect_admissions(backends.gate, backends.stores, time.time(), key_ids)


def sparkline(values: Sequence[int]) -> str:
    """One character for each value, or for several values together; a dot stands for no requests."""
    group = -(-len(values) // SPARKLINE_MAX) or 1
    sums = [sum(values[start : start + group]) for start in range(0, len(values), group)]
    top = max(sums, default=0)
    return "".join(LEVELS[(value * len(LEVELS) - 1) // top] if value else NO_REQUESTS for value in sums)
