"""Backup and restore of a data directory: both environments in one file, while the service runs.

The gate is not in a backup: after a restore its counters start anew. PostgreSQL and Redis have tools of their own; for
them this module only tells the operator the commands.
"""

import calendar
import contextlib
import datetime
import fcntl
import os
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
from petstore.files import check_encoding, check_target, os_errors_of, touch
from petstore.keys import ENVIRONMENTS
from petstore.maintenance import archive
from petstore.maintenance.archive import Manifest, Member, Progress
from petstore.settings import Settings, without_password
from petstore.store.schema import pending
from petstore.store.sqlite.backup import Snapshot, record_entry, take_over_ids
from petstore.store.sqlite.doctor import check_database_file
from petstore.store.sqlite.migrations import KNOWN, migrate

Bar = Callable[[int], contextlib.AbstractContextManager[Progress]]  # called with the number of bytes
STORES = [f"{environment}.db" for environment in ENVIRONMENTS]
_TIME_FORMAT = "%Y%m%dT%H%M%SZ.zip"


class Restored(NamedTuple):
    manifest: Manifest
    kept: Path | None  # the directory of the replaced files
    unreadable: list[str]  # replaced files whose last used ids could not be read


class Kept(NamedTuple):
    """A new backup in a directory of backups."""

    file: Path
    manifest: Manifest
    removed: list[Path]


def back_up_to_directory(settings: Settings, directory: Path, keep: int, entry: AuditEntry, bar: Bar) -> Kept:
    """Write a backup that is named by its time. Verify it, and only then remove the oldest, so that `keep` remain.

    Files with other names are left alone. Raises OperatorError and Unavailable, and then removes nothing.
    """
    _check_source(settings, directory / "petstore.dump")
    check_encoding(directory)
    with os_errors_of(directory):
        if directory.exists() and not directory.is_dir():
            raise OperatorError(f"{directory}: is a file; --keep takes a directory")
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
    """Wait for another backup into this directory, and remove the copies of one that was killed."""
    with os_errors_of(directory):
        opened = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        for path in directory.iterdir():
            if path.name.startswith(".") and _time_of(path.name[1:].rpartition("-")[0]):
                shutil.rmtree(path, ignore_errors=True)
        yield
    finally:
        os.close(opened)


def _next_name(directory: Path) -> Path:
    """The present time, or the second after the newest backup: names sort by age, and none is used twice."""
    newest = max((_time_of(path.name) for path in directory.iterdir()), default=0)
    return directory / time.strftime(_TIME_FORMAT, time.gmtime(max(int(time.time()), newest + 1)))


def _time_of(name: str) -> int:
    """Zero for a file that is not named by a time."""
    try:
        second = calendar.timegm(time.strptime(name, _TIME_FORMAT))
    except ValueError:
        return 0
    return second if name == time.strftime(_TIME_FORMAT, time.gmtime(second)) else 0


def back_up(
    settings: Settings, target: Path, entry: AuditEntry, bar: Bar, *, force: bool = False, verified: bool = False
) -> Manifest:
    """Write a backup to `target`; with `verified`, read all of it again.

    Raises OperatorError and Unavailable, and then leaves `target` as it was.
    """
    _check_source(settings, target)
    _check_target(target, settings.data, force)
    with data_dir.shared_lock(settings.data):
        began = datetime.datetime.now(datetime.UTC)
        with _work_directory(target) as work, contextlib.ExitStack() as stack:
            # All snapshots begin before the first page is copied: the parts differ by milliseconds.
            snapshots = {
                name: stack.enter_context(contextlib.closing(Snapshot(settings.data / name))) for name in STORES
            }
            with bar(2 * sum(snapshot.bytes for snapshot in snapshots.values())) as progress:
                for name, snapshot in snapshots.items():
                    archive.create_private(work / name).close()  # SQLite would create it with the umask's mode
                    snapshot.copy(work / name, progress)
                stack.close()  # from here on SQLite can reset its write-ahead log
                members = [_described(work / name) for name in STORES]
                manifest = Manifest(archive.FORMAT, __version__, began.isoformat(timespec="milliseconds"), members)
                archive.write(target, work, manifest, progress)
        if verified:
            try:
                verify(target, beside=True)
            except PetstoreError:
                target.unlink()
                raise
        # The backup is complete: a failure to record it must not fail the command.
        with contextlib.suppress(Unavailable, OSError):
            touch(settings.data / data_dir.LAST_BACKUP)
            record_entry(settings.data / "live.db", entry)
    return manifest


def restore(settings: Settings, source: Path, entry: AuditEntry, bar: Bar, *, force: bool = False) -> Restored:
    """Replace the data by those of a backup, after all of the backup was checked.

    A crash leaves either the old data or the new data in force, never a mixture. Raises OperatorError, and then the
    data are as they were.
    """
    if settings.store is not None:
        raise OperatorError(how_to_restore_postgresql(settings.store, source))
    data_dir.check_ours(settings.data)
    manifest = _read_manifest(source)
    with data_dir.exclusive_lock(settings.data):
        if data_dir.has_data(settings.data) and not force:
            raise OperatorError(
                f"--data {settings.data}: has Petstore data already; choose an empty directory, or replace the data"
                " with --force"
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
            kept = data_dir.commit_restore(settings.data)
    return Restored(manifest, kept, unreadable)


def verify(source: Path, *, beside: bool = False) -> Manifest:
    """Read all of a backup. Raises OperatorError when it could not be restored.

    It is unpacked where the system has its temporary files, or `beside` itself: the system's may be in memory.
    """
    manifest = _read_manifest(source)
    with _work_directory(source) if beside else tempfile.TemporaryDirectory(prefix="petstore-verify-") as work:
        _check_space(Path(work), str(work), manifest)
        archive.unpack(source, manifest, Path(work), lambda _: None)
        for member in manifest.members:
            _check_member(source, member, Path(work) / member.name)
    return manifest


def _check_space(directory: Path, subject: str, manifest: Manifest) -> None:
    free = shutil.disk_usage(directory).free
    if free < manifest.size:
        raise OperatorError(f"{subject}: {manifest.size:,} bytes are needed and {free:,} are free")


def _check_source(settings: Settings, target: Path) -> None:
    """Raises OperatorError when there is nothing that this command can back up."""
    if settings.store is not None:
        raise OperatorError(how_to_back_up_postgresql(settings.store, target))
    data_dir.check_data(settings.data)


def _check_target(target: Path, data: Path, force: bool) -> None:
    """Raises OperatorError. What `force` replaces is a file, and never the data or a device."""
    check_encoding(target)
    with os_errors_of(target):
        check_target(target, data_dir.trusted_users(data))
        if target.is_dir():
            raise OperatorError(f"{target}: is a directory; name a file, or keep several there with --keep N")
        if target.exists() and not target.is_file():
            raise OperatorError(f"{target}: is not a regular file; choose another name")
        if target.parent.resolve() == data.resolve():
            raise OperatorError(f"{target}: is in the data directory; choose another directory")
        if target.exists() and not force:
            raise OperatorError(f"{target}: exists; choose another name, or replace it with --force")


@contextlib.contextmanager
def _work_directory(target: Path) -> Iterator[Path]:
    """A directory for the copies, on the file system of the target."""
    work = target.absolute().parent / f".{target.name}-{secrets.token_hex(4)}"
    try:  # begins before mkdir: SIGTERM may come right after it
        with os_errors_of(target):
            work.mkdir(mode=0o700)
        yield work
    finally:
        try:
            shutil.rmtree(work, ignore_errors=True)
        except BaseException:  # SIGTERM has interrupted the removal
            shutil.rmtree(work, ignore_errors=True)
            raise


def _described(path: Path) -> Member:
    """The manifest's entry for a copy. Raises OperatorError when the copy is damaged."""
    found = check_database_file(path)
    if found.faults:
        raise OperatorError(f"{path.name} is damaged, so no backup was made: {found.faults[0]}")
    return Member(path.name, path.stat().st_size, archive.sha256_of(path), found.schema, found.rows)


def _read_manifest(source: Path) -> Manifest:
    """Raises OperatorError."""
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
    """Raises OperatorError."""
    faults, schema, *_ = check_database_file(path)
    if not faults and schema != member.schema:
        faults = [f"it has the schema {schema}, and the manifest says {member.schema}"]
    if faults:
        raise archive.Damaged(f"{source}: {member.name} is damaged: {faults[0]}")


def _prepare(source: Path, member: Member, path: Path, replaced: Path, entry: AuditEntry) -> bool:
    """Check a staged file and bring it up to date. Raises OperatorError when it is damaged.

    False when the replaced file could not be read: then ids that it has used since the backup may be used again.
    """
    _check_member(source, member, path)
    migrate(path)
    record_entry(path, entry)
    return not replaced.exists() or take_over_ids(path, replaced)


def how_to_back_up_postgresql(url: str, target: Path) -> str:
    return (
        "the store is in PostgreSQL, which has tools of its own for a backup while it runs:\n"
        f"  pg_dump --format=custom --schema='petstore_*' {shlex.join([f'--file={target}', without_password(url)])}\n"
        "Redis needs no backup: its append-only file (appendonly yes) keeps counters, bans and uncollected usage.\n"
        "Without that file every window starts again."
    )


def how_to_restore_postgresql(url: str, source: Path) -> str:
    database = without_password(url)
    return (
        "the store is in PostgreSQL, which has tools of its own for a restore; stop every node first:\n"
        f"  psql {shlex.quote(database)} -c 'DROP SCHEMA IF EXISTS petstore_live, petstore_staging CASCADE'\n"
        f"  pg_restore --single-transaction {shlex.join([f'--dbname={database}', str(source)])}\n"
        "A node that starts reads everything again."
    )
