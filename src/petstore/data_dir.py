"""The data directory: its files, its owner and locks, and how a restore replaces its files.

Only processes of the directory's owner use it, and only they can write to it. This is checked when the directory is
opened. Everything in it can therefore be trusted, and no other code has to guard against symlinks and the like.

Every process that uses the data holds the shared lock. The kernel releases the lock when the process exits, even after
a crash. Restoring and copying each take the exclusive lock. They prepare files in a subdirectory and then rename that
subdirectory. The rename commits the restore. If a restore is interrupted before the rename, the old data remains in
use. If it is interrupted after the rename, the next process that takes a lock completes the restore.
"""

import contextlib
import fcntl
import itertools
import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from petstore.errors import OperatorError
from petstore.files import check_encoding, check_place, exists, open_file, os_errors_of, sync, user_name
from petstore.settings import without_password

STORE_FILES = ("live.db", "staging.db")
DATA_FILES = (*STORE_FILES, "gate.mdb")
COMPANIONS = ("-wal", "-shm", "-lock", "-boot")  # suffixes of auxiliary files, such as live.db-wal

UMASK = 0o077  # every process that creates files here sets this umask, so that only the owner can read the files
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
LOCK_TIMEOUT = 5.0  # seconds to wait for a lock; a service holds the exclusive lock briefly when it starts and stops

LOCK = "lock"
LAST_BACKUP = "last-backup"  # an empty file; its modification time is the time of the last backup
STAGE = "restore.part"  # the directory in which a restore prepares its files; can be deleted when no restore is running
READY = "restore"  # to commit a restore, STAGE is renamed to READY; the files are then moved into place
NEW, OLD = "new", "old"
# These files record the addresses on which the service and the console last listened.
SERVICE_ADDRESS, CONSOLE_ADDRESS = "service-address", "console-address"
METRICS = "metrics"  # the workers' metrics (observability/multiprocess.py)
# Matches the files and directories that Petstore creates here. Petstore never touches any others.
_OWN_NAME = re.compile(
    r"(live\.db|staging\.db|gate\.mdb|gate-outage\.mdb)(-.*|\.damaged-.*)?|lock|last-backup|metrics|restore(\.part)?"
    r"|replaced-.*|service-address|console-address|\.petstore-.*\.part"
).fullmatch


class NoData(OperatorError):
    """The directory contains no Petstore data, does not exist, or is a file."""

    def __init__(self, data: Path, hint: str = "") -> None:
        cause = ": it is a file, not a directory" if data.is_file() else "" if data.exists() else ": it does not exist"
        super().__init__(f"{data.absolute()} has no Petstore data{cause}{hint}")


class InUse(OperatorError):
    """Another process holds a conflicting lock on the data directory."""


def has_data(data: Path) -> bool:
    """Whether the directory contains a store or the files of an interrupted restore. Raises OperatorError."""
    check_encoding(data)
    with os_errors_of(f"--data {data}"):
        try:
            return any(exists(data / name) for name in (*STORE_FILES, READY))
        except PermissionError:
            check_owner(data)  # its message says which user to become
            raise


def check_ours(data: Path) -> None:
    """Raises NoData if the directory has no store but contains files that Petstore did not create.

    Does not open any files.
    """
    if has_data(data):
        return
    with os_errors_of(f"--data {data}"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if any(path.name != "lost+found" and not _OWN_NAME(path.name) for path in data.iterdir()):
            raise NoData(data)


def own_files(data: Path) -> Iterator[Path]:
    """Yields the files and directories that Petstore has created, with each directory before its contents."""
    for path in sorted(data.iterdir()):
        if _OWN_NAME(path.name):
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from sorted(path.rglob("*"))


def secure(data: Path) -> None:
    """Creates the directory if it does not exist. Otherwise, removes other users' write permission.

    Raises OperatorError if the directory contains other files but no store, or if another user controls any part of it.
    """
    check_ours(data)
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError:
        raise OperatorError(f"--data {data}: is not a directory") from None
    except OSError as error:
        raise OperatorError(f"--data {data}: {error.strerror}") from error
    check_owner(data)
    mode = stat.S_IMODE(data.stat().st_mode)
    if mode & WRITABLE_BY_OTHERS:
        with contextlib.suppress(OSError):
            data.chmod(mode & ~WRITABLE_BY_OTHERS)
        if data.stat().st_mode & WRITABLE_BY_OTHERS:  # some file systems ignore chmod
            raise OperatorError(
                f"--data {data}: other users can write there; run `chmod go-w {shlex.quote(str(data))}` as root"
            )
    check_files(data)


def check_owner(data: Path) -> None:
    """Raises OperatorError if the directory belongs to another user, or if another user could replace it.

    Accepts a directory that does not exist.
    """
    me = os.geteuid()
    with os_errors_of(f"--data {data}"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        owner = data.stat().st_uid
        if owner == me and data.is_symlink():
            owner = data.lstat().st_uid or me  # root may have created the symlink
        if owner != me:
            name = user_name(owner)
            user = f"'#{name}'" if name.isdigit() else name
            raise OperatorError(
                f"--data {data}: belongs to {name}. Run `sudo -u {user} petstore …`, or give the directory to this user"
                f" with {_chown(data)}."
            )
        for path in {data.absolute(), data.resolve()}:
            check_place(path)


def check_files(data: Path) -> None:
    """Raises OperatorError if one of Petstore's files belongs to another user, who may have planted it."""
    with os_errors_of(f"--data {data}"):
        for path in own_files(data):
            with contextlib.suppress(FileNotFoundError):  # another process may have just removed the file
                if (owner := path.lstat().st_uid) != os.geteuid():
                    name = user_name(owner)
                    raise OperatorError(
                        f"Refusing to open {path}: it belongs to {name}. If {name} put it there, remove it. Otherwise,"
                        f" run {_chown(data)}."
                    )


def _chown(data: Path) -> str:
    me = user_name(os.geteuid())
    return f"`chown -R {me} {shlex.quote(str(data))}` as root"


def check_data(data: Path) -> None:
    """Raises NoData if there is no data, or OperatorError if the directory is not accessible. Creates no files."""
    if not has_data(data):
        raise NoData(data)


def readable_by_others(data: Path) -> list[Path]:
    """Checks the directory and Petstore's files in it. Returns the paths that other users can access."""
    found = []
    for path in (data, *own_files(data)):
        with contextlib.suppress(FileNotFoundError):  # another process might have just removed the file
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                found.append(path)
    return found


@contextlib.contextmanager
def shared_lock(data: Path, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Holds the shared lock, which a process must hold while it uses the data.

    Raises InUse if the lock is not available within `timeout` seconds.
    """
    file = _open_lock(data)
    try:
        deadline = time.monotonic() + timeout
        while not _try_shared(file, data):
            if time.monotonic() > deadline:
                raise InUse(f"--data {data}: a restore or a copy is in progress{_holder_of(data / LOCK)}")
            time.sleep(0.01 + os.getpid() % 20 / 1000)  # so that waiting processes retry at different times
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def lock_alone(directory: Path, activity: str, timeout: float) -> Iterator[None]:
    """Locks a directory against other processes with the same activity. Raises InUse after `timeout` seconds."""
    with os_errors_of(directory):
        opened = open_file(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + timeout
        while not _try_lock(opened, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise InUse(f"{directory}: {activity} is in progress{_holder_of(directory)}")
            time.sleep(0.02)
        yield
    finally:
        os.close(opened)


def _holder_of(path: Path) -> str:
    """Names the process that has locked a file, for the end of an error message, and says what to do."""
    with contextlib.suppress(OSError):
        inode = f":{path.stat().st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, pid, file, *_ = line.split()
            if kind == "FLOCK" and file.endswith(inode):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
                command = " ".join(without_password(word) if "://" in word else word for word in words)
                is_stopped = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
                to_do = f"which is stopped; resume it with `kill -CONT {pid}`" if is_stopped else "so try again later"
                return f" by process {pid} ({command}), {to_do}"
    return "; try again later"


@contextlib.contextmanager
def exclusive_lock(data: Path) -> Iterator[None]:
    """Holds the exclusive lock, which keeps all other processes from using the data.

    Raises InUse if another process holds a lock.
    """
    file = _open_lock(data)
    try:
        if not _try_lock(file, fcntl.LOCK_EX):
            raise InUse(f"--data {data}: a service or a command is using it; stop it first")
        complete_restore(data)
        yield
    finally:
        os.close(file)


def is_locked(data: Path) -> bool:
    """Whether any process holds a lock on the data directory. Does not create the lock file."""
    try:
        file = open_file(data / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try_lock(file, fcntl.LOCK_EX)
    finally:
        os.close(file)


def _open_lock(data: Path) -> int:
    """Opens the lock file, creating the file and the directory if necessary. Raises OperatorError."""
    secure(data)
    with os_errors_of(data / LOCK):
        return open_file(data / LOCK)


def _try_shared(file: int, data: Path) -> bool:
    """Tries to take the shared lock. Returns False if the caller must try again.

    If a restore was interrupted, tries to complete it and returns False.
    """
    if not _try_lock(file, fcntl.LOCK_SH):
        return False
    if not (data / READY).is_dir():
        return True
    if _try_lock(file, fcntl.LOCK_EX):
        complete_restore(data)
    else:  # release the shared lock; two processes that both kept it would wait for each other forever
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _try_lock(file: int, operation: int) -> bool:
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def stage_restore(data: Path) -> Iterator[Path]:
    """Creates a subdirectory for the restored files. The caller must hold the exclusive lock.

    Removes the subdirectory on exit unless the caller has called `commit_restore`.
    """
    stage = data / STAGE
    shutil.rmtree(stage, ignore_errors=True)
    for directory in (stage, stage / NEW, stage / OLD):
        directory.mkdir(mode=0o700)
    try:
        yield stage / NEW
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def commit_restore(data: Path) -> Path | None:
    """Replaces the data with the staged files. Returns the subdirectory that now contains the old files, if any."""
    new = data / STAGE / NEW
    for path in (*new.iterdir(), new, data / STAGE):
        sync(path)
    (data / STAGE).rename(data / READY)
    sync(data)
    return complete_restore(data)


def complete_restore(data: Path) -> Path | None:
    """Moves the files of a committed restore into place. If a crash interrupts the move, the next call resumes it.

    Also moves the old gate file out of the way, so that counters start at zero. Returns the subdirectory that now
    contains the old files, if any.
    """
    ready = data / READY
    if not ready.is_dir():
        return None
    new, old = ready / NEW, ready / OLD
    for name in DATA_FILES:
        is_staged = os.path.lexists(new / name)
        if is_staged or name not in STORE_FILES:  # a store file that is no longer staged has already been moved
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
