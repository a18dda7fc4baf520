"""`petstore check`: runs the health checks and prints the results."""

import asyncio
import difflib
import os
from typing import Any

import click

from petstore import data_dir
from petstore.cli import variable_of
from petstore.cli.console import console
from petstore.cli.data import no_data
from petstore.cli.options import Command, check_settings, json_option, settings_from
from petstore.cli.output import Output
from petstore.cli.serve import serve
from petstore.cli.suggestions import as_typed
from petstore.errors import OperatorError
from petstore.maintenance.doctor import Finding, findings, warnings_of

_settings_options = [param for param in serve.params if param.name not in ("demo", "show_first_key")]


class _Check(Command):
    elsewhere = tuple(str(param.name) for param in _settings_options)
    title = "Settings"
    pointer = ("--data, --port, …", "The service's settings. See petstore help serve and petstore help backends.")


@click.command(cls=_Check, params=_settings_options, context_settings={"auto_envvar_prefix": "PETSTORE"})
@json_option
def check(as_json: bool, **options: Any) -> None:
    """Check the settings, the store, the gate, free space and the clock, without changing anything.

    The command accepts the same options and PETSTORE_… variables as petstore serve, except --demo and
    --show-first-key. You can run it while the service is running.

    \b
    Exit code:
      0  no faults were found (lines marked WARN are warnings)
      1  at least one fault was found (see the lines marked FAULT)
      2  the check could not run
    """
    settings = settings_from(options)
    data_dir.check_ours(settings.data)
    # A node that uses PostgreSQL and Redis has no data directory until it is started for the first time.
    if settings.store is None and not data_dir.has_data(settings.data):
        raise no_data(settings)
    if settings.gate is None and not settings.data.is_dir():
        raise no_data(settings)
    if settings.data.is_dir():
        data_dir.check_owner(settings.data)
        data_dir.check_files(settings.data)
    faults_of_settings: list[str] = []
    try:
        check_settings(settings)
    except OperatorError as error:
        faults_of_settings.append(str(error))
    warnings = [*warnings_of(settings), *_mistyped_variables()]
    of_settings = Finding("settings", faults_of_settings, warnings=warnings)
    found = [_typed(finding) for finding in (of_settings, *asyncio.run(findings(settings)))]
    ok = not any(finding.faults for finding in found)
    data = {
        "ok": ok,
        "findings": {finding.subject: finding.faults for finding in found},
        "warnings": {finding.subject: finding.warnings for finding in found if finding.warnings},
        "about": {finding.subject: finding.about for finding in found},
    }
    width = max(len(finding.subject) for finding in found)
    lines = []
    for subject, faults, about, warned in found:
        mark = "FAULT" if faults else "WARN " if warned else "ok   "
        lines.append(f"{mark}  {subject:<{width}}  {'' if faults else about}".rstrip())
        lines += [f"         {text}" for text in (*faults, *warned)]
    Output(data, *lines).print(as_json)
    if not ok:
        raise click.exceptions.Exit(1)


def _typed(finding: Finding) -> Finding:
    subject, faults, about, warnings = finding
    return Finding(subject, [*map(as_typed, faults)], as_typed(about), [*map(as_typed, warnings)])


def _mistyped_variables() -> list[str]:
    """Returns a warning for each environment variable that looks like a mistyped setting."""
    known = {
        variable_of(param, click.Context(command, **command.context_settings))
        for command in (serve, console)
        for param in command.params
        if isinstance(param, click.Option)
    }
    found = []
    for name in sorted(os.environ):
        alike = difflib.get_close_matches(name, known, 1, cutoff=0.8)
        if name.startswith("PETSTORE_") and name not in known and alike:
            found.append(f"{name} is not a setting and is ignored; did you mean {alike[0]}?")
    return found
