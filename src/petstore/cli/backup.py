"""`petstore backup` and `petstore restore`: back up all data to one file, and restore data from such a file."""

import asyncio
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from petstore.backends import Backends
from petstore.cli.data import actor, announce_all, check_data
from petstore.cli.options import Command, WholeNumber, check_parent, data_options, settings_from
from petstore.cli.output import Output, progress
from petstore.cli.suggestions import as_typed
from petstore.errors import OperatorError
from petstore.maintenance import backup as backups
from petstore.maintenance.archive import Manifest, Progress
from petstore.settings import Settings
from petstore.wording import counted, printable

_file = click.Path(path_type=Path)


@click.command(cls=Command)
@click.argument("file", metavar="FILE|DIR", type=_file)
@click.option("--keep", type=WholeNumber(1, 100_000), metavar="N",
              help="Write the backup to the directory DIR, verify it, and keep only the N newest backups there.",
              )  # fmt: skip
@click.option("--verify", is_flag=True, help="Check an existing backup instead of creating one.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@data_options
def backup(file: Path, keep: int | None, verify: bool, force: bool, as_json: bool, **where: Any) -> None:
    """Back up both environments to FILE, even while the service is running.

    FILE|DIR is a file or, with --keep, a directory. Each backup in a directory is named after the time when it was
    created. A backup contains every animal whose creation was acknowledged before the backup began. The file does not
    appear until the backup is complete.
    If the store is in PostgreSQL, the command does not back it up, but prints the pg_dump command to use.

    \b
    Examples:
      petstore backup /var/backups/petstore/before-upgrade.zip
      petstore backup --verify /var/backups/petstore/before-upgrade.zip
      petstore backup /var/backups/petstore --keep 24
    """
    if keep is not None and (verify or force):
        raise OperatorError("--keep cannot be combined with --verify or --force")
    if verify:
        manifest = backups.verify(file)
        sentence = f"{click.format_filename(file)} is complete: {_summary(manifest)}"
        Output({"ok": True, "manifest": manifest}, sentence).print(as_json)
        return
    check_parent(file)
    signal.signal(signal.SIGTERM, _stop)
    settings = settings_from(where)
    if settings.store is None:
        asyncio.run(check_data(settings))
    audit_entry, bar = actor(time.time()).entry("backup", file.name), partial(_bar, "Backing up")
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
@click.option("--force", is_flag=True, help="Replace existing data. The old data is moved to DIR/replaced-…")
@data_options
def restore(file: Path, force: bool, as_json: bool, **where: Any) -> None:
    """Replace the data in the data directory with the data from the backup FILE.

    Stop the service first. Unless --force is given, the data directory must be empty. The command checks the whole
    backup before it replaces anything. Even if the command crashes, the service will find either all of the old data or
    all of the new data.
    If the gate is a file, restoring resets all counters and lifts all bans. Counters and bans in Redis do not change.
    Ids from the old data are not reused. If the old data cannot be read, the command warns that ids might be reused.

    \b
    Example:
      petstore restore /var/backups/petstore/20261115T023412Z.zip --force
    """
    settings = settings_from(where)
    audit_entry = actor(time.time()).entry("restore", click.format_filename(file.name))
    bar = partial(_bar, "Restoring")
    manifest, kept, unreadable, revived = backups.restore(settings, file, audit_entry, bar, force=force)
    if settings.gate is not None:
        asyncio.run(_announce_restore(settings))
    for name in unreadable:
        click.echo(f"The old {name} could not be read, so ids assigned after the backup might be reused.", err=True)
    for revoked in revived:
        for key_id in revoked.keys:
            warning = f"{key_id} was revoked after the backup, but the restore has made it valid again."
            click.echo(as_typed(f"{warning} To revoke it, run `petstore keys revoke {key_id}`."), err=True)
        for name in revoked.operators:
            warning = f"The operator {printable(name)} was revoked after the backup, but can now sign in again."
            revoke = f"To revoke this operator, run `petstore operators revoke {shlex.quote(name)}`."
            click.echo(as_typed(f"{warning} {revoke}"), err=True)
    sentences = [f"{settings.data}: {_summary(manifest)}"]
    if kept:
        sentences.append(f"The replaced data is in {kept}. Delete that directory when you no longer need it.")
    data = {"data": str(settings.data), "kept": str(kept) if kept else None, "manifest": manifest}
    Output(data, *sentences).print(as_json)


async def _announce_restore(settings: Settings) -> None:
    async with Backends(settings) as backends:
        await announce_all(backends.gate)


def _stop(number: int, frame: object) -> None:
    """Handles SIGTERM by raising SystemExit, so that the unfinished backup is removed. Ignores further SIGTERMs."""
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
    return f"{counts}; as of {manifest.began.replace('+00:00', 'Z')}"
