"""The data directory: the names of its files, its shared and exclusive lock, and how a restore replaces its files.

A process that works on the data has the shared lock; the kernel releases it when the process ends, however it ends.
A restore and a copy take the exclusive lock. A restore prepares its files in a subdirectory and then renames that one
subdirectory: before the rename the old data are in force, after it the new data. A crash in between leaves an
interrupted restore, which the next process that takes a lock completes.
"""

import contextlib
import fcntl
import itertools
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from petstore.errors import OperatorError

DATA_FILES = ("live.db", "staging.db", "gate.mdb")
COMPANIONS = ("-wal", "-shm", "-lock", "-boot")  # suffixes of the files that SQLite and LMDB keep beside a data file

UMASK = 0o077  # of every process that creates files here: only their owner may read them
LOCK_TIMEOUT = 5.0  # seconds: a service that starts or stops has the exclusive lock for a moment

LOCK = "lock"
LAST_BACKUP = "last-backup"  # an empty file; its time is that of the last backup
STAGE = "restore.part"  # files that a restore prepares, or no longer needs
READY = "restore"  # STAGE after the rename that commits: its files are the data now, even before they are moved
NEW, OLD, MEMBERS = "new", "old", "members"
OWN = (LOCK, LAST_BACKUP, STAGE, "metrics", "lost+found")  # names that a directory without data may have


class NoData(OperatorError):
    """The directory does not exist, or has no data of Petstore."""

    def __init__(self, data: Path) -> None:
        super().__init__(f"no Petstore data in {data}")


class InUse(OperatorError):
    """Another process has a lock that excludes ours."""


@contextlib.contextmanager
def os_errors_of(subject: object) -> Iterator[None]:
    """Turns an OSError of the body into an OperatorError that begins with the subject."""
    try:
        yield
    except OSError as error:
        raise OperatorError(f"{subject}: {error.strerror}") from error


def exists(path: Path) -> bool:
    """Raises PermissionError when it cannot be known. `Path.exists` answers False then, from Python 3.14 on."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_encoding(path: Path) -> None:
    """Raises OperatorError for a path that is not UTF-8: SQLite and LMDB could not open it."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise OperatorError(f"{path}: the path is not UTF-8; choose another") from None


def create(data: Path) -> None:
    """Create the directory if it does not exist. Raises OperatorError when it cannot be used."""
    check_encoding(data)
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError:
        raise OperatorError(f"--data {data}: is not a directory") from None
    except OSError as error:
        raise OperatorError(f"--data {data}: {error.strerror}") from error
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        raise OperatorError(f"--data {data}: no permission to write there; run this as the service's user")


def check_data(data: Path) -> None:
    """Raises NoData, and OperatorError when the directory may not be entered. Creates nothing."""
    check_encoding(data)
    with os_errors_of(f"--data {data}"):
        if not any(exists(data / name) for name in (*DATA_FILES[:2], READY)):
            raise NoData(data)


def readable_by_others(data: Path) -> list[Path]:
    """The directory itself and the files in it, if users other than the owner have any permission for them."""
    found = []
    for path in (data, *sorted(data.rglob("*"))):
        with contextlib.suppress(FileNotFoundError):  # a running command creates and removes files
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                found.append(path)
    return found


@contextlib.contextmanager
def shared_lock(data: Path, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """For every process that works on the data, and its children. Raises InUse after `timeout` seconds."""
    file = _open_lock(data)
    try:
        deadline = time.monotonic() + timeout
        while not _try_shared(file, data):
            if time.monotonic() > deadline:
                raise InUse(f"--data {data}: a restore or a copy is in progress; wait for its end")
            time.sleep(0.01 + os.getpid() % 20 / 1000)  # processes that wait for each other retry at different times
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def exclusive_lock(data: Path) -> Iterator[None]:
    """For work during which no other process may use the data. Raises InUse at once."""
    file = _open_lock(data)
    try:
        if not _try_lock(file, fcntl.LOCK_EX):
            raise InUse(f"--data {data}: a service or a command works on it; stop it first")
        complete_restore(data)
        yield
    finally:
        os.close(file)


def is_locked(data: Path) -> bool:
    """Whether a process has a lock. Creates nothing."""
    try:
        file = os.open(data / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(file, fcntl.LOCK_EX)
    finally:
        os.close(file)


def _open_lock(data: Path) -> int:
    """Creates the directory too. Raises OperatorError."""
    create(data)
    try:
        file = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.geteuid() == 0:  # after a command of root, the service's user must still be able to open the lock
            os.fchown(file, data.stat().st_uid, data.stat().st_gid)
    except OSError as error:
        raise OperatorError(f"{data / LOCK}: {error.strerror}; run this as the owner of the directory") from error
    return file


def _try_shared(file: int, data: Path) -> bool:
    """Take the shared lock. Where a restore was interrupted, complete it first; the caller then tries again."""
    if not _try_lock(file, fcntl.LOCK_SH):
        return False
    if not (data / READY).exists():
        return True
    if _try_lock(file, fcntl.LOCK_EX):
        complete_restore(data)
    else:  # two processes that both kept the shared lock would wait for each other
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _try_lock(file: int, operation: int) -> bool:
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def contents(data: Path) -> list[str]:
    """The names that make a directory not empty."""
    return sorted(path.name for path in data.iterdir() if path.name not in OWN)


@contextlib.contextmanager
def stage_restore(data: Path) -> Iterator[Path]:
    """A subdirectory for the files of a restore. The caller has the exclusive lock.

    At the end of the body the subdirectory is removed, unless the body has called `commit_restore`.
    """
    stage = data / STAGE
    shutil.rmtree(stage, ignore_errors=True)
    (stage / NEW).mkdir(parents=True, mode=0o700)
    (stage / OLD).mkdir(mode=0o700)
    try:
        yield stage / NEW
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def commit_restore(data: Path) -> Path | None:
    """Put the staged files in force. Returns the subdirectory with the old files, if there were any."""
    new = data / STAGE / NEW
    (data / STAGE / MEMBERS).write_text("\n".join(sorted(path.name for path in new.iterdir())))
    for path in (*new.iterdir(), data / STAGE / MEMBERS, new, data / STAGE):
        sync(path)
    (data / STAGE).rename(data / READY)
    sync(data)
    return complete_restore(data)


def complete_restore(data: Path) -> Path | None:
    """Move the files of a committed restore to their names. A crash at any step does no harm: the next call goes on."""
    ready = data / READY
    if not ready.exists():
        return None
    new, old = ready / NEW, ready / OLD
    members = (ready / MEMBERS).read_text().split("\n")
    for name in DATA_FILES:
        is_staged = (new / name).exists()
        if is_staged or name not in members:
            for existing in (name, *(name + companion for companion in COMPANIONS)):
                with contextlib.suppress(FileNotFoundError):
                    (data / existing).rename(old / existing)
        if is_staged:
            (new / name).rename(data / name)
    kept = None
    if old.is_dir() and any(old.iterdir()):
        stamp = time.strftime("replaced-%Y%m%dT%H%M%SZ", time.gmtime())
        kept = next(path for n in itertools.count() if not (path := data / f"{stamp}{f'-{n}' if n else ''}").exists())
        old.rename(kept)
    sync(data)
    shutil.rmtree(data / STAGE, ignore_errors=True)
    ready.rename(data / STAGE)
    shutil.rmtree(data / STAGE, ignore_errors=True)
    return kept


def sync(path: Path) -> None:
    """Write a file's content, or a directory's names, to the disk. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
