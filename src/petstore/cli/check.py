"""`petstore check`: is the data sound?"""

import shutil
from typing import Any

import click

from petstore.cli import common_options, json_option, print_json, run
from petstore.errors import OperatorError, PetstoreError
from petstore.service import Backends
from petstore.settings import Settings

LOW_SPACE = 256 * 1024 * 1024


@click.command()
@common_options
@json_option
def check(as_json: bool, **where: Any) -> None:
    """Check integrity of store and gate, schema and free space. Exit code 1 when something is wrong."""
    settings = Settings(**where)
    if not settings.data.is_dir():
        raise OperatorError(f"--data {settings.data}: no such folder")
    findings = run(_findings(settings))
    sound = not any(findings.values())
    if as_json:
        print_json({"ok": sound, "findings": findings})
    else:
        for subject, faults in findings.items():
            click.echo(f"{'ok   ' if not faults else 'FAULT'}  {subject}")
            for fault in faults:
                click.echo(f"         {fault}")
    if not sound:
        raise click.exceptions.Exit(1)


async def _findings(settings: Settings) -> dict[str, list[str]]:
    findings: dict[str, list[str]] = {}
    if settings.gate is None:
        from petstore.gate.trust import readable

        path = settings.data / "gate.mdb"
        damaged = path.exists() and not readable(path)
        findings["gate"] = [f"{path} is damaged; the next petstore serve sets it aside"] if damaged else []
        if damaged:
            return findings
    try:
        async with Backends(settings) as backends:
            if settings.gate is not None:
                await backends.gate.keys_version("live")
                findings["gate"] = ["Redis does not answer"] if backends.gate.degraded() else []
            for environment, store in backends.stores.items():
                findings[f"store, {environment}"] = await store.faults()
    except PetstoreError as error:
        findings["store"] = [str(error)]
    free = shutil.disk_usage(settings.data).free
    findings["free space"] = [f"only {free // 2**20} MiB left"] if free < LOW_SPACE else []
    return findings
