"""`petstore check`: is all well?"""

import os
from typing import Any

import click

from petstore import data_dir as folder
from petstore.cli import json_option, print_json, run
from petstore.cli.serve import check_settings, serve
from petstore.errors import OperatorError
from petstore.maintenance.doctor import Finding, findings
from petstore.settings import Settings


@click.command(params=[*serve.params], context_settings={"auto_envvar_prefix": "PETSTORE"})
@json_option
def check(as_json: bool, **options: Any) -> None:
    """Check the settings, the store, the gate, free space and the clock. Nothing is changed.

    Takes the options of petstore serve, and its PETSTORE_… variables, so that what is checked is what would run.
    A service may be running meanwhile.

    \b
    Exit code:
      0  all is well
      1  something is wrong: the lines marked FAULT say what
      2  the check could not be made
    """
    settings = Settings(**options)
    folder.check_name(settings.data)
    with folder.told(f"--data {settings.data}"):
        if not settings.data.is_dir():
            raise OperatorError(f"--data {settings.data}: no such folder")
    if not os.access(settings.data, os.R_OK | os.X_OK):
        raise OperatorError(f"--data {settings.data}: no rights to read it; run this as the service's user")
    found = [_settings(settings), *run(findings(settings))]
    sound = not any(finding.faults for finding in found)
    if as_json:
        print_json(
            {
                "ok": sound,
                "findings": {finding.subject: finding.faults for finding in found},
                "about": {finding.subject: finding.about for finding in found},
            }
        )
    else:
        width = max(len(finding.subject) for finding in found)
        for subject, faults, about in found:
            click.echo(f"{'FAULT' if faults else 'ok   '}  {subject:<{width}}  {'' if faults else about}".rstrip())
            for fault in faults:
                click.echo(f"         {fault}")
    if not sound:
        raise click.exceptions.Exit(1)


def _settings(settings: Settings) -> Finding:
    try:
        check_settings(settings)
    except OperatorError as error:
        return Finding("settings", [str(error)])
    return Finding("settings", [])
