"""`python -m tools.references`: generates docs/reference/ and the console's help page. --check only compares them."""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from markdown_it import MarkdownIt
from markdown_it.token import Token

from petstore.cli import cli
from petstore.cli.console import console
from petstore.cli.help import backends
from petstore.cli.serve import serve
from petstore.cli.suggestions import BACKEND_OPTIONS
from petstore.observability.events import EVENTS
from petstore.observability.metrics import METRICS
from petstore.verify.checks import CHECKS, OPTIONS

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs/console.md"
GENERATED = "<!-- Written by `make docs`. Do not edit. -->\n\n"
WIDTH = 100
BACKEND_TITLE = "\nBackend options:\n"
# Also matches the title if this is the only option.
HELP_OPTION = re.compile(r"(\n\nOptions:)?\n  -h, --help +Show this message and exit\.")


def documents() -> dict[str, str]:
    """Returns the content of each generated file by its path."""
    written = {
        "command-line.md": _command_line(), "settings.md": _settings(), "metrics.md": _metrics(),
        "events.md": _events(), "checks.md": _checks(), "figures.md": _figures(),
    }  # fmt: skip
    references = {f"docs/reference/{name}": GENERATED + text for name, text in written.items()}
    return {**references, "src/petstore/console/templates/guide.html": _guide()}


def _command_line() -> str:
    _, backend_page = next(_help_pages(backends, "petstore help backends", None))
    text = (
        "# Command line\n\nEvery command prints this text with `--help`. These options belong to every command that"
        f" acts on data:\n\n```\n{backend_page.rstrip()}\n```\n"
    )
    for name, page in _help_pages(cli, "petstore", None):
        own = page.partition(BACKEND_TITLE)[0].rstrip()
        text += f"\n## {name}\n\n```\n{HELP_OPTION.sub('', own)}\n```\n"
    return text


def _help_pages(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """Yields the paths and help pages of a command and its subcommands."""
    context = click.Context(command, parent, name, terminal_width=WIDTH, **command.context_settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from _help_pages(below, each, context)


def _settings() -> str:
    return (
        "# Settings\n\nEach option can also be set with a variable. To give a list, repeat the option, or separate the"
        " values in the variable with spaces.\n\n## petstore serve\n\n`petstore check` takes the same options, except"
        " `--demo` and `--show-first-key`.\n\n"
        + _options(serve, "PETSTORE")
        + "\n## petstore console\n\nThe backend options are the same as above.\n\n"
        + _options(console, "PETSTORE_CONSOLE", without=BACKEND_OPTIONS)
    )


def _options(command: click.Command, prefix: str, without: Iterable[str] = ()) -> str:
    context = click.Context(command, auto_envvar_prefix=prefix)
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden or option.name in without:
            continue
        variable = option.envvar if isinstance(option.envvar, str) else f"{prefix}_{option.name}".upper()
        rows.append((f"`{option.opts[0]}`", f"`{variable}`", _default(option, context), option.help or ""))
    return _table(("option", "variable", "default", "meaning"), rows)


def _default(option: click.Option, context: click.Context) -> str:
    if option.is_flag:
        return "off"
    if isinstance(option.show_default, str):
        return option.show_default
    default = option.get_default(context, call=False)
    return f"`{default}`" if isinstance(default, str | int | Path) else "none"


def _metrics() -> str:
    rows = ((f"`{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.about) for m in METRICS)
    return (
        "# Metrics\n\n[Monitoring](../monitoring.md) says how to read them.\n\n"
        + _table(("metric", "kind", "labels", "meaning"), rows)
    )  # fmt: skip


def _events() -> str:
    rows = ((f"`{name}`", each.meaning, each.action.replace("](", "](../")) for name, each in EVENTS.items())
    return (
        "# Log events\n\nThe service and the console write one line per event to standard error: text on a terminal,"
        " JSON otherwise. A JSON line has `timestamp`, `level`, `event`, `pid` and the fields of the event."
        " A key appears by its id only.\n\n" + _table(("event", "meaning", "what to do"), rows)
    )


def _checks() -> str:
    rows = (
        (
            f"[`{check.name}`](../../src/petstore/verify/{check.topic}.py)",
            check.level,
            check.promise,
            "; ".join(OPTIONS[need] for need in check.needs),
        )
        for check in CHECKS
    )
    return (
        "# Checks of a deployment\n\n`petstore verify` runs these checks"
        " [after every deployment](../operating.md#after-every-deployment). `spec` is what the specification says."
        " `contract` is what this service promises beyond it and a deployment can break.\n\n"
        + _table(("check", "level", "promise", "needs"), rows)
    )


def _figures() -> str:
    race, servers, cluster, scaling, console, console_cluster = (
        json.loads((ROOT / f"bench/results/{name}.json").read_text())
        for name in ("race", "servers", "cluster", "scaling", "console-pages", "console-cluster-pages")
    )
    proofs = json.loads((ROOT / "prove/results/full.json").read_text())
    hidden = {"outcome", "seconds", "at", "machine"}
    kept = (
        (name, proof["outcome"], ", ".join(f"{what} {value}" for what, value in proof.items() if what not in hidden),
         proof["at"][:10])
        for name, proof in proofs.items()
    )  # fmt: skip
    return (
        "# Figures\n\nThe results of the last run of each measurement. [The benchmark](../../bench/README.md) and"
        " [the proofs](../../prove/README.md) explain what is measured and how.\n\n"
        "Each table is a separate run. Other programs shared the cores and the disk, more in some runs than in others."
        " Therefore compare contenders within a table, not between tables. This affects create requests most, because"
        " they wait for the disk.\n\n"
        f"## The race\n\n{_machine(race)}\n\n{_race(race)}\n"
        f"## The same application on other servers\n\n{_machine(servers)}\n\n{_race(servers)}\n"
        f"## The race on PostgreSQL and Redis\n\n{_machine(cluster)}\n\n{_race(cluster)}\n"
        f"## CPU time of one request on PostgreSQL and Redis\n\n{_scaling_machine(scaling)}\n\n"
        + _table(
            ("request", "node µs", "Redis µs", "PostgreSQL µs", "Redis calls", "commits"),
            ((row, *(str(cost[name]) for name in (
                "node_us", "redis_us", "postgres_us", "redis_steps", "postgres_commits"
            ))) for row, cost in scaling["costs"].items()),
        )
        + f"\n## Memory and disk\n\n{_scaling_machine(scaling)}\n\n"
        + _table(("measured", "figure"), _memory_and_disk(scaling))
        + f"\n## Pages of the console\n\n{_console_pages(console)}"
        + f"\n## Pages of the console on PostgreSQL and Redis\n\n{_console_pages(console_cluster)}"
        + "\n## Proofs\n\n" + _table(("proof", "outcome", "figures", "run on"), kept)
    )  # fmt: skip


def _machine(run: dict[str, Any]) -> str:
    machine, settings = run["machine"], run["settings"]
    return (
        f"{machine['cores']} shared cores, Python {machine['python']}, {settings['rounds']} rounds of"
        f" {settings['seconds']} s, {settings['animals']:,} animals, {run['finished'][:10]}. Medians."
    )


def _scaling_machine(run: dict[str, Any]) -> str:
    machine = run["machine"]
    return f"{machine['cores']} shared cores, Python {machine['python']}, one worker, {run['finished']}."


def _memory_and_disk(run: dict[str, Any]) -> Iterable[tuple[str, str]]:
    memory, takes = run["memory"], run["bytes"]
    yield "the main process of a node", f"{memory['main_process_mib']} MiB"
    yield "a worker, after these requests", f"{memory['worker_mib']} MiB"
    yield "an animal in SQLite, with its indexes", f"{takes['animal_in_sqlite']} bytes"
    yield "an animal in PostgreSQL, with its indexes", f"{takes['animal_in_postgresql']} bytes"
    yield "an idempotency key in PostgreSQL, for 24 hours", f"{takes['idempotency_key_in_postgresql']} bytes"
    yield "an API key in Redis", f"{takes['api_key_in_redis']} bytes"
    for step, each in run["redis_us_by_requests_in_a_step"].items():
        yield f"Redis for a request, {step} in a call, each with another key", f"{each} µs"


def _console_pages(run: dict[str, Any]) -> str:
    """Returns a table with the slowest page of each section, by median."""
    settings = run["settings"]
    times = ("median", "slowest", "first", "processor")
    slowest: dict[str, str] = {}
    for path, _ in sorted(run["pages"].items(), key=lambda item: item[1]["median"]):
        slowest[re.split(r"[/?]", path)[0]] = path
    return (
        f"{run['cores']} shared cores, {settings['animals']:,} animals, {settings['keys']:,} keys, a month of usage,"
        f" {settings['entries']:,} audit entries, {run['finished']}. Of {len(run['pages'])} pages, the slowest of each"
        f" section: milliseconds of {settings['requests']} requests, of the first request after a start, and of"
        " CPU time. `deprecated/export` is a file with a line for each key.\n\n"
        + _table(
            ("page", "median", "slowest", "first", "CPU"),
            ((f"`{path}`", *(str(run["pages"][path][name]) for name in times)) for path in slowest.values()),
        )
    )


def _race(run: dict[str, Any]) -> str:
    rows = (
        (row, name, _number(result.get("processor_us_per_request")), _number(result["requests_per_second"]),
         str(result["p99_ms"]))
        for row, results in run["rows"].items()
        for name, result in results["contenders"].items()
    )  # fmt: skip
    return _table(("row", "contender", "CPU µs per request", "requests per second", "p99 ms"), rows)


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,}"


def _table(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _guide() -> str:
    """Returns the guide to the console as HTML, without its title, its images, and its links to other documents."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    _, _, text = GUIDE.read_text().partition("\n")
    tokens = markdown.parse(re.sub(r"<picture>.*?</picture>", "", text, flags=re.DOTALL))
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", re.sub(r"\W+", "-", following.content.lower()))
    for token in tokens:
        token.children = _without_outer_links(token.children or [])
    page: str = markdown.renderer.render(tokens, markdown.options, {})
    return "{# Written by `make docs` from docs/console.md. Do not edit. #}\n" + page


def _without_outer_links(tokens: list[Token]) -> list[Token]:
    kept, is_outer = [], False
    for token in tokens:
        if token.type == "link_open":
            is_outer = not str(token.attrGet("href")).startswith("#")
        if token.type not in ("link_open", "link_close") or not is_outer:
            kept.append(token)
    return kept


def main(words: list[str] | None = None, directory: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.references", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is not up to date")
    check = parser.parse_args(words).check
    outdated = []
    for name, text in documents().items():
        file = directory / name
        if not file.exists() or file.read_text() != text:
            outdated.append(name)
            if not check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
    if check and outdated:
        print(f"references: not up to date: {', '.join(outdated)}; run `make docs`")
        return 1
    print(f"references: {len(outdated)} written" if outdated else "references: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
