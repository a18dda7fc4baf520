"""`petstore usage`: shows how many requests each key has sent, as numbers and sparklines."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import click
from click.core import ParameterSource

from petstore.backends import Backends
from petstore.cli.completion import key_ids
from petstore.cli.data import key_of, on_data
from petstore.cli.options import Command, Month, env_option, limit_option
from petstore.cli.output import Csv, Output, Table
from petstore.errors import Unavailable
from petstore.keys import Environment
from petstore.operations import OPERATIONS, OperationName
from petstore.reports.bills import CSV_COLUMNS, bill
from petstore.reports.charts import ResponseClass, key_bars
from petstore.reports.key_status import status_of
from petstore.store import Store
from petstore.usage import SPANS, Span, SpanName, calendar_month
from petstore.wording import when

LEVELS = "▁▂▃▄▅▆▇█"
NO_REQUESTS = "·"
OPERATION_NAMES = [each.name for each in OPERATIONS]
SPARKLINE_MAX = 30  # characters; with longer sparklines, table rows would not fit in a terminal
KEY_ANSWERS: dict[ResponseClass, str] = {
    "ok": "ok", "client_error": "4xx", "refused": "429", "banned": "banned", "server_error": "5xx"
}  # fmt: skip


class Period(NamedTuple):
    """The period to show. `name` is used as a label, and `in_words` is used in sentences."""

    span: Span
    end: float
    name: str
    in_words: str


@click.command(cls=Command)
@click.argument("key_id", metavar="[KEY_ID]", required=False, shell_complete=key_ids)
@env_option
@click.option("--span", type=click.Choice(list(SPANS)), help="Show the last hour, day, week or month.  [default: day]")
@click.option("--month", type=Month(), metavar="YYYY-MM", help="Show a calendar month (UTC) instead of --span.")
@limit_option(20)
@click.option("--operation", type=click.Choice(OPERATION_NAMES), help="Count only requests for this operation.")
@click.option("--after", default="", metavar="KEY_ID",
              help="Continue after KEY_ID, the last key on the previous page.")  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True,
              help="Print the number of admitted requests for every key as CSV, for billing.")  # fmt: skip
@on_data("read")
async def usage(
    backends: Backends, key_id: str | None, environment: Environment, span: SpanName | None, month: str | None,
    limit: int, operation: OperationName | None, after: str, as_csv: bool,
) -> Output:  # fmt: skip
    """Show request counts for all keys, busiest first, or for one key over time.

    KEY_ID is a key's id, as shown by petstore keys list.

    \b
    Examples:
      petstore usage
      petstore usage --month 2026-10 --csv > october.csv
      petstore usage key_7Gh2kP0sLq9Z --span week
      petstore usage --operation getPet --span month

    For billing, use the "admitted" column, which counts all requests so far, except those refused with 429. A running
    service updates its counts of 429 responses and errors every five seconds.

    --csv prints a row for every key, including unused keys, in both environments unless --env is given. The operation
    columns add up to "admitted". The "other" column counts requests for an unknown path or method.
    """
    if span and month:
        raise click.UsageError("--span cannot be combined with --month.")
    period = _period(span or "day", month)
    if as_csv:
        _check_all_keys()
        chosen = _is_given("environment")
        return await _bill([backends.stores[environment]] if chosen else [*backends.stores.values()], backends, period)
    if key_id:
        return await _one(backends, key_id, period, operation)
    return await _busiest(backends, environment, period, limit, operation, after)


def _period(span: SpanName, month: str | None) -> Period:
    if month is None:
        return Period(SPANS[span], time.time(), f"last {span}", f"within the last {span}")
    return Period(*calendar_month(month), month, f"in {month}")


async def _busiest(
    backends: Backends,
    environment: Environment,
    period: Period,
    limit: int,
    operation: OperationName | None,
    after: str,
) -> Output:
    span, end, name, in_words = period
    store = backends.stores[environment]
    if after:
        await key_of(backends, after)
    await _collect(backends)
    totals = await store.usage.busiest(
        interval=span.interval, since=span.since(end), until=int(end) + 1, limit=limit + 1, after=after,
        operation=operation,
    )  # fmt: skip
    shown = totals[:limit]
    ids = [total.key_id for total in shown]
    keys = await store.keys.by_id(ids)
    bars = await key_bars(store.usage, ids, span, end, operation)
    data, rows = [], []
    for total in shown:
        key = keys.get(total.key_id)  # after a restore, the key might be missing from the store
        about = {"name": key.name if key else "", "plan": key.plan if key else None}
        data.append({**total._asdict(), "requests": total.requests, **about})
        counts = (total.requests, total.admitted, total.refused, total.banned)
        line = sparkline(bars[total.key_id].totals())
        rows.append([total.key_id, line, *(f"{count:,}" for count in counts), key.name if key else ""])
    empty = f"No {'more keys with ' if after else ''}requests in {environment} {in_words}."
    table = Table(["key", name, "requests", "admitted", "429", "banned", "name"], rows, empty)
    return Output(data, table, more=f"--after {ids[-1]}" if len(totals) > limit else "")


def _check_all_keys() -> None:
    """Raises UsageError if --csv is combined with KEY_ID, or with an option that selects rows or another format."""
    for param in click.get_current_context().command.params:
        if param.name in ("key_id", "limit", "operation", "after", "as_json") and _is_given(param.name):
            shown = param.opts[0] if isinstance(param, click.Option) else "KEY_ID"
            raise click.UsageError(
                f"--csv cannot be combined with {shown}. It always prints every key and every operation."
            )


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) == ParameterSource.COMMANDLINE


async def _bill(stores: Sequence[Store], backends: Backends, period: Period) -> Output:
    await _collect(backends)
    rows = [billed.csv_row() for store in stores for billed in await bill(store, period.span, period.end)]
    return Output(None, Csv(CSV_COLUMNS, rows))


async def _one(backends: Backends, key_id: str, period: Period, operation: OperationName | None) -> Output:
    span, end, name, in_words = period
    key = await key_of(backends, key_id)
    await _collect(backends, [key_id])
    bars = (await key_bars(backends.stores[key.environment].usage, [key_id], span, end, operation))[key_id]
    status = await status_of(backends.gate, key, time.time())
    admitted = sum(bars.admitted)
    steps = [
        {
            "start": start,
            "admitted": bars.admitted[bar],
            **{answer: bars.requests[answer][bar] for answer in KEY_ANSWERS},
        }
        for bar, start in enumerate(bars.starts)
    ]
    data = {
        "key_id": key.id, "name": key.name, "day_used": status.day_used if status else None, "admitted": admitted,
        "seconds": bars.seconds, "steps": steps,
    }  # fmt: skip
    fields = {
        "key": f"{key.id} ({key.environment}, {key.plan})",
        "name": key.name,
        "today": f"{f'{status.day_used:,}' if status else '?'} of {key.per_day:,}",
        name: sparkline(bars.totals()),
        "admitted": f"{admitted:,}",
    }
    used = [step for step in steps if any(step[answer] for answer in KEY_ANSWERS)]
    rows = [[when(step["start"]), *(f"{step[answer]:,}" for answer in KEY_ANSWERS)] for step in used]
    return Output(data, fields, "", Table(["from", *KEY_ANSWERS.values()], rows, f"No requests {in_words}."))


async def _collect(backends: Backends, key_ids: Sequence[str] | None = None) -> None:
    """Collects admissions that the service has not collected yet. Prints a warning if a backend is unavailable."""
    try:
        await backends.collect_admissions(time.time(), key_ids)
    except Unavailable as error:
        click.echo(f"WARN the counts do not include the most recent requests: {error}", err=True)


def sparkline(values: Sequence[int]) -> str:
    """Returns a sparkline with one character per value or per group of consecutive values. A dot means no requests."""
    group = -(-len(values) // SPARKLINE_MAX) or 1
    sums = [sum(values[start : start + group]) for start in range(0, len(values), group)]
    top = max(sums, default=0)
    return "".join(LEVELS[(value * len(LEVELS) - 1) // top] if value else NO_REQUESTS for value in sums)
