"""Backup and restore of a data folder: both environments and the gate, in one file, while the service runs.

What lies in PostgreSQL or in Redis is theirs to back up: here it is only said how.
"""

import contextlib
import datetime
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from petstore import __version__
from petstore import data_dir as folder
from petstore.audit import AuditEntry
from petstore.errors import OperatorError, Unavailable
from petstore.gate import GATE_FILE
from petstore.gate.lmdb import copy_out, renew_versions
from petstore.gate.recovery import readable
from petstore.keys import ENVIRONMENTS
from petstore.maintenance import archive
from petstore.maintenance.archive import Manifest, Member, Progress
from petstore.settings import Settings, without_password
from petstore.store.sqlite.backup import Snapshot, note, take_over_ids
from petstore.store.sqlite.doctor import NEWEST_SCHEMA, inspect

Bar = Callable[[int], contextlib.AbstractContextManager[Progress]]  # for so many bytes


class Restored(NamedTuple):
    manifest: Manifest
    kept: Path | None  # where the files are that were there before
    unread: list[str]  # those of them that do not tell which ids they have given out


def back_up(settings: Settings, target: Path, entry: AuditEntry, bar: Bar, *, force: bool = False) -> Manifest:
    """Raises OperatorError and Unavailable; then there is no new file, and an old one of that name is as it was."""
    _check_target(settings, target, force)
    hold = folder.Hold(settings.data)
    try:
        began = datetime.datetime.now(datetime.UTC)
        with _work_folder(target) as work, contextlib.ExitStack() as stack:
            # Everything is pinned to nearly the same moment before the first page is copied.
            snapshots = {name: Snapshot(settings.data / name) for name in _stores()}
            for snapshot in snapshots.values():
                stack.callback(snapshot.close)
            names = [*snapshots]
            gate = settings.data / GATE_FILE
            if settings.gate is None and gate.exists():
                copy_out(gate, work / GATE_FILE)
                names.append(GATE_FILE)
            with bar(2 * sum(snapshot.bytes for snapshot in snapshots.values())) as progress:
                for name, snapshot in snapshots.items():
                    snapshot.copy(work / name, progress)
                stack.close()  # from here on the log may start over again
                members = [_described(work / name) for name in names]
                manifest = Manifest(archive.FORMAT, __version__, began.isoformat(timespec="milliseconds"), members)
                archive.write(target, work, manifest, progress)
        # The backup is made; that it is noted down matters less.
        with contextlib.suppress(Unavailable, OSError):
            (settings.data / folder.LAST_BACKUP).touch(mode=0o600)
            note(settings.data / "live.db", entry)
    finally:
        hold.release()
    return manifest


def restore(settings: Settings, source: Path, entry: AuditEntry, bar: Bar, *, force: bool = False) -> Restored:
    """All is checked before anything is replaced; a crash leaves either the old data or the new, never a mixture.

    Raises OperatorError, and then the folder is as it was.
    """
    if settings.store is not None:
        raise OperatorError(how_to_restore_postgresql(settings.store, source))
    manifest = archive.read(source)
    _check_manifest(source, manifest)
    with folder.claimed(settings.data):
        found = folder.contents(settings.data)
        if found and not force:
            raise OperatorError(
                f"--data {settings.data}: has {', '.join(found[:3])}{' …' if len(found) > 3 else ''};"
                " choose an empty folder, or replace what is there with --force"
            )
        free = shutil.disk_usage(settings.data).free
        if free < manifest.size:
            raise OperatorError(f"--data {settings.data}: {manifest.size:,} bytes are needed and {free:,} are free")
        with folder.staged(settings.data) as new:
            with bar(manifest.size) as progress:
                archive.unpack(source, manifest, new, progress)
            names = [member.name for member in manifest.members]
            unread = [name for name in names if not _make_ready(source, new / name, settings.data / name, entry)]
            kept = folder.accept(settings.data)
    return Restored(manifest, kept, unread)


def verify(source: Path) -> Manifest:
    """Read a backup from end to end. Raises OperatorError when it could not be restored."""
    manifest = archive.read(source)
    _check_manifest(source, manifest)
    with tempfile.TemporaryDirectory(prefix="petstore-verify-") as place:
        archive.unpack(source, manifest, Path(place), lambda _: None)
        for member in manifest.members:
            _check_member(source, Path(place) / member.name)
    return manifest


def _stores() -> list[str]:
    return [f"{environment}.db" for environment in ENVIRONMENTS]


def _check_target(settings: Settings, target: Path, force: bool) -> None:
    if settings.store is not None:
        raise OperatorError(how_to_back_up_postgresql(settings.store, target))
    with folder.told(f"--data {settings.data}"):
        if not all((settings.data / name).exists() for name in _stores()):
            raise OperatorError(f"--data {settings.data}: there is nothing to back up")
    folder.check_name(target)
    with folder.told(target):
        if target.is_dir():
            raise OperatorError(f"{target}: is a folder; name a file")
        if target.exists() and not force:
            raise OperatorError(f"{target}: exists; choose another name, or replace it with --force")


@contextlib.contextmanager
def _work_folder(target: Path) -> Iterator[Path]:
    """Beside the target: where there is room for it, there is room for what it is made of."""
    place = target.absolute().parent / f".{target.name}-{secrets.token_hex(4)}"
    try:  # from before it is made: we may be told to stop at any moment
        with folder.told(target):
            place.mkdir(mode=0o700)
        yield place
    finally:
        try:
            shutil.rmtree(place, ignore_errors=True)
        except BaseException:  # told to stop in the middle of this: it is still to be done
            shutil.rmtree(place, ignore_errors=True)
            raise


def _described(path: Path) -> Member:
    """A copy as the manifest tells of it. Raises OperatorError when it could not be restored."""
    if path.name == GATE_FILE:
        if not readable(path):
            raise OperatorError(f"{GATE_FILE} is damaged; petstore serve sets it aside when it starts")
        return Member(GATE_FILE, path.stat().st_size, archive.sha256_of(path))
    found = inspect(path)
    if found.faults:
        raise OperatorError(f"{path.name} is damaged, so no backup was made: {found.faults[0]}")
    return Member(path.name, path.stat().st_size, archive.sha256_of(path), found.schema, found.rows)


def _check_manifest(source: Path, manifest: Manifest) -> None:
    names = sorted(member.name for member in manifest.members)
    if names not in (sorted(_stores()), sorted(folder.DATA)):
        raise archive.Damaged(f"{source}: does not hold both environments")
    newest = max(member.schema or 0 for member in manifest.members)
    if newest > NEWEST_SCHEMA:
        raise OperatorError(
            f"{source}: was written by a newer Petstore ({manifest.petstore}, schema {newest}; this one knows"
            f" {NEWEST_SCHEMA}); upgrade Petstore"
        )


def _check_member(source: Path, path: Path) -> None:
    faults = inspect(path).faults if path.name != GATE_FILE else [] if readable(path) else ["it cannot be read"]
    if faults:
        raise archive.Damaged(f"{source}: {path.name} is damaged: {faults[0]}")


def _make_ready(source: Path, path: Path, replaced: Path, entry: AuditEntry) -> bool:
    """Whether no id that the replaced file has given out will be given again. Raises OperatorError."""
    _check_member(source, path)
    if path.name == GATE_FILE:
        renew_versions(path)
        return True
    note(path, entry)
    return not replaced.exists() or take_over_ids(path, replaced)


def how_to_back_up_postgresql(url: str, target: Path) -> str:
    return (
        "the store is in PostgreSQL, whose own tools back it up while it runs:\n"
        f"  pg_dump --format=custom --schema='petstore_*' --file={target} {without_password(url)}\n"
        "With a gate in Redis nothing else is needed: it holds only counters and bans, which Redis keeps in its\n"
        "append-only file (appendonly yes); without them every window starts anew."
    )


def how_to_restore_postgresql(url: str, source: Path) -> str:
    return (
        "the store is in PostgreSQL, whose own tools restore it; stop every node first:\n"
        f"  pg_restore --clean --if-exists --single-transaction --dbname={without_password(url)} {source}\n"
        "What the nodes remember is forgotten when they start."
    )
