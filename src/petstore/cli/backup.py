"""`petstore backup` and `petstore restore`."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from petstore.cli import common_options, counted, entry, json_option, print_json, progress, run
from petstore.errors import OperatorError
from petstore.maintenance.archive import Manifest, Progress, is_archive
from petstore.settings import Settings

_file = click.Path(path_type=Path)


@click.command()
@click.argument("file", type=_file)
@click.option("--verify", is_flag=True, help="Only check a backup that was made earlier.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@common_options
@json_option
def backup(file: Path, verify: bool, force: bool, as_json: bool, **where: Any) -> None:
    """Write both environments and the gate to FILE, while the service runs.

    Every animal acknowledged before the backup began is in it. FILE has its name only when it is whole.
    With a store in PostgreSQL this says which of its tools to use.

    \b
    Examples:
      petstore backup /var/backups/petstore/before-upgrade.zip
      petstore backup --verify /var/backups/petstore/before-upgrade.zip
    """
    if verify:
        _verify(file, as_json)
        return
    from petstore.maintenance.backup import back_up
    from petstore.service import recover_gate

    signal.signal(signal.SIGTERM, _stop)
    settings = Settings(**where)
    recover_gate(settings)
    manifest = back_up(settings, file, entry("backup", file.name), _bar("Backing up"), force=force)
    if as_json:
        print_json({"file": str(file), "bytes": file.stat().st_size, "manifest": manifest})
    else:
        click.echo(f"{file}: {_told(manifest)}")


@click.command()
@click.argument("file", type=_file)
@click.option("--force", is_flag=True, help="Replace the data in the folder; what was there is kept in DIR/replaced-…")
@common_options
@json_option
def restore(file: Path, force: bool, as_json: bool, **where: Any) -> None:
    """Bring the data in FILE, a backup, into the data folder.

    Stop the service first. All of FILE is checked before anything is replaced. The folder must be empty, or --force
    given. Should the machine fail meanwhile, the next start finds either the old data or the new.
    No id that the old data have given out is given again; where they cannot be read, this is said.

    \b
    Example:
      petstore restore /var/backups/petstore/20261115T023412Z.zip --force
    """
    from petstore.maintenance.backup import restore as bring_back

    settings = Settings(**where)
    told = entry("restore", click.format_filename(file.name))
    manifest, kept, unread = bring_back(settings, file, told, _bar("Restoring"), force=force)
    if settings.gate is not None:
        run(_forget_what_is_remembered(settings))
    for name in unread:
        click.echo(
            f"The old {name} could not be read: ids that it gave out after the backup may be given out again.", err=True
        )
    if as_json:
        print_json({"data": str(settings.data), "kept": str(kept) if kept else None, "manifest": manifest})
        return
    click.echo(f"{settings.data}: {_told(manifest)}")
    if kept:
        click.echo(f"What was there before is in {kept}; remove it when you are sure.")


async def _forget_what_is_remembered(settings: Settings) -> None:
    """Other machines share this gate: what they know of the store is no longer true."""
    from petstore.keys import ENVIRONMENTS
    from petstore.service import Backends

    async with Backends(settings) as backends:
        for environment in ENVIRONMENTS:
            await backends.gate.raise_version(environment, "catalogue")
            await backends.gate.raise_version(environment, "keys")


def _stop(number: int, frame: object) -> None:
    """Whoever stops us, once or more, half a backup must not be left lying about."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def _verify(file: Path, as_json: bool) -> None:
    from petstore.maintenance.backup import verify

    if not is_archive(file):
        raise OperatorError(f"{file}: is not a backup of Petstore")
    manifest = verify(file)
    if as_json:
        print_json({"ok": True, "manifest": manifest})
    else:
        click.echo(f"{click.format_filename(file)}: is complete; {_told(manifest)}")


def _bar(label: str) -> Callable[[int], contextlib.AbstractContextManager[Progress]]:
    @contextlib.contextmanager
    def bar(size: int) -> Iterator[Progress]:
        with progress(label, size) as shown:
            yield shown.update

    return bar


def _told(manifest: Manifest) -> str:
    counts = ", ".join(
        f"{counted(member.rows.get('pets', 0), 'animal')} and {counted(member.rows.get('keys', 0), 'key')} in"
        f" {member.name.removesuffix('.db')}"
        for member in manifest.members
        if member.schema is not None
    )
    return f"{counts}; as of {manifest.began}"
