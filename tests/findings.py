"""Runs the checks of `petstore check` in this process, which is faster than starting the command."""

import asyncio
from pathlib import Path
from typing import Any

from harness.commands import Commands
from petstore.maintenance.doctor import FREE_BYTES_MIN, FREE_FILES_MIN, MOUNTS, findings
from petstore.settings import Settings


def faults(
    commands: Commands,
    free_bytes: int = FREE_BYTES_MIN,
    free_files: int = FREE_FILES_MIN,
    mounts: Path = MOUNTS,
    **settings: Any,
) -> dict[str, list[str]]:
    """Returns the faults by subject. `settings` are added to the settings of `commands`."""
    server = commands.server
    chosen = Settings(**{"data": server.data, "store": server.store, "gate": server.gate, **settings})
    found = asyncio.run(findings(chosen, free_bytes=free_bytes, free_files=free_files, mounts=mounts))
    return {finding.subject: finding.faults for finding in found if finding.faults}
