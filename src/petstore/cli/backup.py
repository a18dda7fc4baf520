"""`petstore backup` and `petstore restore`."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from petstore.backends import Backends
from petstore.changes import CHANGES
from petstore.cli.data import entry
from petstore.cli.options import Command, WholeNumber, check_parent, data_options, settings_from
from petstore.cli.output import Output, progress
from petstore.errors import OperatorError
from petstore.keys import ENVIRONMENTS
from petstore.maintenance import backup as backups
from petstore.maintenance.archive import Manifest, Progress
from petstore.settings import Settings
from petstore.wording import counted

_file = click.Path(path_type=Path)


@click.command(cls=Command)
@click.argument("file", type=_file)
@click.option("--keep", type=WholeNumber(1, 100_000), metavar="N",
              help="FILE is a directory: name the backup by its time, verify it, then remove the oldest. N remain.",
              )  # fmt: skip
@click.option("--verify", is_flag=True, help="Only check an existing backup.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@data_options
def backup(file: Path, keep: int | None, verify: bool, force: bool, as_json: bool, **where: Any) -> None:
    """Write both environments to FILE, while the service runs.

    FILE|DIR: a file or, with --keep, a directory for files that are named by their time.
    FILE has every animal that was acknowledged before the backup began, and appears only when it is complete.
    With a store in PostgreSQL the command prints which tools of PostgreSQL to use.

    \b
    Examples:
      petstore backup /var/backups/petstore/before-upgrade.zip
      petstore backup --verify /var/backups/petstore/before-upgrade.zip
      petstore backup /var/backups/petstore --keep 24
    """
    if keep is not None and (verify or force):
        raise OperatorError("--keep goes neither with --verify nor with --force")
    if verify:
        manifest = backups.verify(file)
        sentence = f"{click.format_filename(file)} is complete: {_summary(manifest)}"
        Output({"ok": True, "manifest": manifest}, sentence).print(as_json)
        return
    check_parent(file)
    signal.signal(signal.SIGTERM, _stop)
    settings = settings_from(where)
    audit_entry, bar = entry("backup", file.name), partial(_bar, "Backing up")
    if keep is None:
        made = backups.Kept(file, backups.back_up(settings, file, audit_entry, bar, force=force), [])
    else:
        made = backups.back_up_to_directory(settings, file, keep, audit_entry, bar)
    removed = [str(path) for path in made.removed]
    data = {"file": str(made.file), "bytes": made.file.stat().st_size, "manifest": made.manifest, "removed": removed}
    sentences = [f"{made.file}: {_summary(made.manifest)}", *(f"Removed {path}." for path in removed)]
    Output(data, *sentences).print(as_json)


@click.command(cls=Command)
@click.argument("file", type=_file)
@click.option("--force", is_flag=True, help="Replace existing data; they are kept in DIR/replaced-…")
@data_options
def restore(file: Path, force: bool, as_json: bool, **where: Any) -> None:
    """Replace the data in the data directory with those of FILE, a backup.

    Stop the service first. All of FILE is checked before anything is replaced. The directory must be empty, unless
    --force is given. After a crash the next start finds either the old data or the new data.
    All rate limits start anew, and bans are lifted.
    Ids that the old data have used are not used again; a message says where the old data could not be read.

    \b
    Example:
      petstore restore /var/backups/petstore/20261115T023412Z.zip --force
    """
    settings = settings_from(where)
    audit_entry = entry("restore", click.format_filename(file.name))
    manifest, kept, unreadable = backups.restore(settings, file, audit_entry, partial(_bar, "Restoring"), force=force)
    if settings.gate is not None:
        asyncio.run(_announce_all(settings))
    for name in unreadable:
        click.echo(f"The old {name} could not be read: ids that it used after the backup may be used again.", err=True)
    sentences = [f"{settings.data}: {_summary(manifest)}"]
    if kept:
        sentences.append(f"The replaced data are in {kept}; delete them when you no longer need them.")
    data = {"data": str(settings.data), "kept": str(kept) if kept else None, "manifest": manifest}
    Output(data, *sentences).print(as_json)


async def _announce_all(settings: Settings) -> None:
    """Makes the caches of all nodes that share this gate outdated: the restore has replaced what they read."""
    async with Backends(settings) as backends:
        for environment in ENVIRONMENTS:
            await backends.gate.announce(environment, CHANGES)


def _stop(number: int, frame: object) -> None:
    """Ends the command as an exception, which removes the unfinished backup. Ignores further signals meanwhile."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


@contextlib.contextmanager
def _bar(label: str, size: int) -> Iterator[Progress]:
    with progress(label, size) as bar:
        yield bar.update


def _summary(manifest: Manifest) -> str:
    counts = ", ".join(
        f"{counted(member.rows.get('pets', 0), 'animal')} and {counted(member.rows.get('keys', 0), 'key')} in"
        f" {member.name.removesuffix('.db')}"
        for member in manifest.members
    )
    return f"{counts}; as of {manifest.began}"
