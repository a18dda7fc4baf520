"""Backs up and restores a data directory. A backup contains both environments.

The service can keep running during a backup. A backup does not include the gate, so counters start at zero after a
restore. For PostgreSQL and Redis, this module only tells the operator which tools to run.
"""

import calendar
import contextlib
import datetime
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from petstore import __version__, data_dir
from petstore.audit import AuditEntry
from petstore.errors import OperatorError, PetstoreError, Unavailable
from petstore.files import check_encoding, check_target, os_errors_of
from petstore.keys import ENVIRONMENTS
from petstore.maintenance import archive
from petstore.maintenance.archive import Manifest, Member, Progress
from petstore.settings import Settings, without_password
from petstore.store.schema import pending
from petstore.store.sqlite.backup import Revoked, Snapshot, record_entry, revoked_only_in, take_over_ids
from petstore.store.sqlite.doctor import check_database_file
from petstore.store.sqlite.migrations import KNOWN, migrate

Bar = Callable[[int], contextlib.AbstractContextManager[Progress]]  # shows a progress bar, given the total in bytes
STORES = [f"{environment}.db" for environment in ENVIRONMENTS]
OTHER_BACKUP_TIMEOUT = 20.0  # seconds
_TIME_FORMAT = "%Y%m%dT%H%M%SZ.zip"


class Restored(NamedTuple):
    manifest: Manifest
    kept: Path | None  # the directory that contains the replaced files
    unreadable: list[str]  # replaced files whose highest ids could not be read
    revived: list[Revoked]  # keys and operators that were revoked after the backup was made, and are active again


class Kept(NamedTuple):
    """A new backup in a directory, and the old backups that were deleted."""

    file: Path
    manifest: Manifest
    removed: list[Path]


def back_up_to_directory(settings: Settings, directory: Path, keep: int, entry: AuditEntry, bar: Bar) -> Kept:
    """Writes and verifies a backup named after the current time. Keeps the newest `keep` backups and deletes the rest.

    Ignores files that are not named after a time. If the backup fails, raises OperatorError or Unavailable and deletes
    nothing.
    """
    _check_source(settings, directory / "petstore.dump")
    check_encoding(directory)
    with os_errors_of(directory):
        if directory.exists() and not directory.is_dir():
            raise OperatorError(f"{directory}: is a file; --keep requires a directory")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _one_at_a_time(directory):
        target = _next_name(directory)
        entry = msgspec.structs.replace(entry, subject=target.name)
        manifest = back_up(settings, target, entry, bar, verified=True)
        older = sorted(path for path in directory.iterdir() if _time_of(path.name) and path != target)
        removed = older[: max(0, len(older) - keep + 1)]
        with os_errors_of(directory):
            for path in removed:
                path.unlink()
    return Kept(target, manifest, removed)


@contextlib.contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Waits briefly for another backup to this directory to finish. Removes temporary files of killed backups.

    Raises InUse if the other backup does not finish.
    """
    with data_dir.lock_alone(directory, "another backup or dump", OTHER_BACKUP_TIMEOUT):
        for path in directory.iterdir():
            if path.name.startswith(".") and _time_of(path.name[1:].rpartition("-")[0]):
                shutil.rmtree(path, ignore_errors=True)
        yield


def _next_name(directory: Path) -> Path:
    """Returns the path for a new backup, which is named after the current time.

    If the newest backup is already named after this time or a later one, the new name is one second later than that
    backup's name. As a result, names are unique and sort by age.
    """
    newest = max((_time_of(path.name) for path in directory.iterdir()), default=0)
    return directory / time.strftime(_TIME_FORMAT, time.gmtime(max(int(time.time()), newest + 1)))


def _time_of(name: str) -> int:
    """Returns the time in a backup's file name as a Unix time, or 0 if this is not the name of a backup."""
    try:
        second = calendar.timegm(time.strptime(name, _TIME_FORMAT))
    except ValueError:
        return 0
    return second if name == time.strftime(_TIME_FORMAT, time.gmtime(second)) else 0


def back_up(
    settings: Settings, target: Path, entry: AuditEntry, bar: Bar, *, force: bool = False, verified: bool = False
) -> Manifest:
    """Writes a backup to `target`. If `verified` is true, reads it back and verifies it.

    Raises OperatorError or Unavailable on failure. If writing fails, `target` is unchanged. If verification fails,
    `target` is deleted.
    """
    _check_source(settings, target)
    _check_target(target, settings.data, force)
    with data_dir.shared_lock(settings.data):
        began = datetime.datetime.now(datetime.UTC)
        with _work_directory(target) as work, contextlib.ExitStack() as stack:
            # Start all snapshots before copying anything, so that they are taken only milliseconds apart.
            snapshots = {
                name: stack.enter_context(contextlib.closing(Snapshot(settings.data / name))) for name in STORES
            }
            with bar(2 * sum(snapshot.bytes for snapshot in snapshots.values())) as progress:
                for name, snapshot in snapshots.items():
                    # Create the file first, because other users might be able to read a file created by SQLite.
                    archive.create_private(work / name).close()
                    snapshot.copy(work / name, progress)
                stack.close()  # end the snapshots, so that SQLite can reset its write-ahead log
                members = [_described(work / name) for name in STORES]
                manifest = Manifest(archive.FORMAT, __version__, began.isoformat(timespec="milliseconds"), members)
                archive.write(target, work, manifest, progress)
        if verified:
            try:
                verify(target, next_to_backup=True)
            except PetstoreError:
                target.unlink()
                raise
        # The backup is complete, so the command must succeed even if the audit entry cannot be written.
        with contextlib.suppress(Unavailable, OSError):
            (settings.data / data_dir.LAST_BACKUP).touch(mode=0o600)
            record_entry(settings.data / "live.db", entry)
    return manifest


def restore(settings: Settings, source: Path, entry: AuditEntry, bar: Bar, *, force: bool = False) -> Restored:
    """Verifies a backup and replaces the data with it.

    After a crash, the data directory contains either the old or the new data, never a mix. If the data cannot be
    replaced, raises OperatorError and leaves the data unchanged.
    """
    if settings.store is not None:
        raise OperatorError(how_to_restore_postgresql(settings.store, source))
    data_dir.check_ours(settings.data)
    manifest = _read_manifest(source)
    with data_dir.exclusive_lock(settings.data):
        if data_dir.has_data(settings.data) and not force:
            raise OperatorError(
                f"--data {settings.data}: already contains Petstore data; choose an empty directory, or replace the"
                " data with --force"
            )
        _check_space(settings.data, f"--data {settings.data}", manifest)
        with data_dir.stage_restore(settings.data) as new:
            with bar(manifest.size) as progress:
                archive.unpack(source, manifest, new, progress)
            unreadable = [
                member.name
                for member in manifest.members
                if not _prepare(source, member, new / member.name, settings.data / member.name, entry)
            ]
            revived = [
                revoked_only_in(settings.data / name, new / name) for name in STORES if (settings.data / name).exists()
            ]
            kept = data_dir.commit_restore(settings.data)
    return Restored(manifest, kept, unreadable, revived)


def verify(source: Path, *, next_to_backup: bool = False) -> Manifest:
    """Verifies that a backup can be restored, and returns its manifest. Raises OperatorError on failure.

    Extracts the backup to the system's temporary directory, which may be in memory. If `next_to_backup` is true, uses a
    temporary directory next to the backup.
    """
    manifest = _read_manifest(source)
    with _work_directory(source) if next_to_backup else tempfile.TemporaryDirectory(prefix="petstore-verify-") as work:
        _check_space(Path(work), str(work), manifest)
        archive.unpack(source, manifest, Path(work), lambda _: None)
        for member in manifest.members:
            _check_member(source, member, Path(work) / member.name)
    return manifest


def _check_space(directory: Path, subject: str, manifest: Manifest) -> None:
    free = shutil.disk_usage(directory).free
    if free < manifest.size:
        raise OperatorError(f"{subject}: {manifest.size:,} bytes are required, but only {free:,} are free")


def _check_source(settings: Settings, target: Path) -> None:
    """Raises OperatorError if the store is in PostgreSQL, or if the data directory contains no data."""
    if settings.store is not None:
        raise OperatorError(how_to_back_up_postgresql(settings.store, target))
    data_dir.check_data(settings.data)


def _check_target(target: Path, data: Path, force: bool) -> None:
    """Raises OperatorError if a backup must not be written to `target`. With `force`, it may replace a regular file."""
    check_encoding(target)
    with os_errors_of(target):
        check_target(target)
        if target.is_dir():
            raise OperatorError(f"{target}: is a directory; give a file, or keep several backups there with --keep N")
        if target.exists() and not target.is_file():
            raise OperatorError(f"{target}: is not a regular file; choose another name")
        if target.parent.resolve() == data.resolve():
            raise OperatorError(f"{target}: is in the data directory; choose another directory")
        if target.exists() and not force:
            raise OperatorError(f"{target}: exists; choose another name, or replace it with --force")


@contextlib.contextmanager
def _work_directory(target: Path) -> Iterator[Path]:
    """Creates a temporary directory next to the target."""
    work = target.absolute().parent / f".{target.name}-{secrets.token_hex(4)}"
    try:  # mkdir is in the try block because SIGTERM may arrive right after it
        with os_errors_of(target):
            work.mkdir(mode=0o700)
        yield work
    finally:
        try:
            shutil.rmtree(work, ignore_errors=True)
        except BaseException:  # SIGTERM interrupted the removal
            shutil.rmtree(work, ignore_errors=True)
            raise


def _described(path: Path) -> Member:
    """Returns the manifest entry for a database file. Raises OperatorError if the file is damaged."""
    found = check_database_file(path)
    if found.faults:
        raise OperatorError(f"{path.name} is damaged, so no backup was made: {found.faults[0]}")
    return Member(path.name, path.stat().st_size, found.schema, found.rows)


def _read_manifest(source: Path) -> Manifest:
    """Returns a backup's manifest. Raises OperatorError if this version cannot restore the backup."""
    manifest = archive.read(source)
    if sorted(member.name for member in manifest.members) != sorted(STORES):
        raise archive.Damaged(f"{source}: does not contain both environments")
    for member in manifest.members:
        try:
            pending(KNOWN, member.schema or 0)
        except OperatorError as error:
            raise OperatorError(f"{source}: {error}") from None
    return manifest


def _check_member(source: Path, member: Member, path: Path) -> None:
    """Raises OperatorError if an extracted database file is damaged or does not match the manifest."""
    faults, schema, *_ = check_database_file(path)
    if not faults and schema != member.schema:
        faults = [f"its schema is {schema}, but the manifest says {member.schema}"]
    if faults:
        raise archive.Damaged(f"{source}: {member.name} is damaged: {faults[0]}")


def _prepare(source: Path, member: Member, path: Path, replaced: Path, entry: AuditEntry) -> bool:
    """Checks and migrates a staged file, and adds the audit entry. Raises OperatorError if the file is damaged.

    Returns False if the file to be replaced cannot be read. In that case, new records may reuse ids that were assigned
    after the backup was made.
    """
    _check_member(source, member, path)
    migrate(path)
    record_entry(path, entry)
    return not replaced.exists() or take_over_ids(path, replaced)


def how_to_back_up_postgresql(url: str, target: Path) -> str:
    return (
        "the store is in PostgreSQL; back it up with pg_dump, which works while the service is running:\n"
        f"  pg_dump --format=custom --schema='petstore_*' {shlex.join([f'--file={target}', without_password(url)])}\n"
        "Redis needs no backup. Its append-only file (appendonly yes) keeps counters, bans and uncollected usage.\n"
        "Without that file, all of these are lost when Redis restarts."
    )


def how_to_restore_postgresql(url: str, source: Path) -> str:
    database = without_password(url)
    return (
        "the store is in PostgreSQL; stop every node, then restore the store with these commands:\n"
        f"  psql {shlex.quote(database)} -c 'DROP SCHEMA IF EXISTS petstore_live, petstore_staging CASCADE'\n"
        f"  pg_restore --single-transaction {shlex.join([f'--dbname={database}', str(source)])}\n"
        "Then start the nodes."
    )
