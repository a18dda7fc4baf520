"""The data directory: who may change it, how its files are opened, its locks, and how a restore replaces its files.

A user who could put a link into the directory would choose the file that a command of root writes. So the owner of the
directory is a user who is trusted anyway, no other user can write there, and no link in the directory is followed.

A process that works on the data has the shared lock; the kernel releases it when the process ends, however it ends.
A restore and a copy take the exclusive lock. A restore prepares its files in a subdirectory and then renames that one
subdirectory: before the rename the old data are in force, after it the new data. A crash in between leaves an
interrupted restore, which the next process that takes a lock completes.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import pwd
import re
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from petstore.errors import OperatorError

STORE_FILES = ("live.db", "staging.db")
DATA_FILES = (*STORE_FILES, "gate.mdb")
COMPANIONS = ("-wal", "-shm", "-lock", "-boot")  # suffixes of the files that SQLite and LMDB keep next to a data file

UMASK = 0o077  # of every process that creates files here: only their owner may read them
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
LOCK_TIMEOUT = 5.0  # seconds: a service that starts or stops has the exclusive lock for a moment

LOCK = "lock"
LAST_BACKUP = "last-backup"  # an empty file; its time is that of the last backup
STAGE = "restore.part"  # files that a restore prepares, or no longer needs
READY = "restore"  # STAGE after the rename that commits: its files are the data now, even before they are moved
NEW, OLD = "new", "old"
METRICS = "metrics"  # the numbers of the workers (observability/multiprocess.py)
# The names that Petstore gives to files and directories here. Whatever has another name belongs to somebody else.
_OWN_NAME = re.compile(
    r"(live\.db|staging\.db|gate\.mdb|gate-outage\.mdb)(-.*|\.damaged-.*)?|lock|last-backup|metrics|restore(\.part)?"
    r"|replaced-.*"
).fullmatch


class NoData(OperatorError):
    """The directory does not exist, or has no Petstore data."""

    def __init__(self, data: Path, hint: str = "") -> None:
        super().__init__(f"{data.absolute()} has no Petstore data{hint}")


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


def has_data(data: Path) -> bool:
    """Whether the directory has a store, or a restore of one that was interrupted. Raises OperatorError."""
    check_encoding(data)
    with os_errors_of(f"--data {data}"):
        return any(exists(data / name) for name in (*STORE_FILES, READY))


def check_ours(data: Path) -> None:
    """Raises NoData for a directory that has other content and no store, before anything in it is opened."""
    if has_data(data):
        return
    with os_errors_of(f"--data {data}"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if any(path.name != "lost+found" and not _OWN_NAME(path.name) for path in data.iterdir()):
            raise NoData(data)


def own_files(data: Path) -> Iterator[Path]:
    """Everything in the directory that Petstore has created, directories before their content."""
    for path in sorted(data.iterdir()):
        if _OWN_NAME(path.name):
            yield path
            if is_directory(path):
                yield from sorted(path.rglob("*"))


def create(data: Path) -> None:
    """Create the directory if it does not exist; otherwise let only its owner write there.

    Raises OperatorError when the directory belongs to something else, cannot be used, or is not safe to use.
    """
    check_ours(data)
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError:
        raise OperatorError(f"--data {data}: is not a directory") from None
    except OSError as error:
        raise OperatorError(f"--data {data}: {error.strerror}") from error
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        raise OperatorError(f"--data {data}: no permission to write there; run this as the service's user")
    check_safe(data)
    mode = stat.S_IMODE(data.stat().st_mode)
    if mode & WRITABLE_BY_OTHERS:
        with contextlib.suppress(OSError):
            data.chmod(mode & ~WRITABLE_BY_OTHERS)
        if data.stat().st_mode & WRITABLE_BY_OTHERS:  # also where the file system has ignored the change
            raise _writable_by_others(data)


def check_safe(data: Path) -> None:
    """Raises OperatorError if a user who is not trusted could change the directory, or if it has a link or a pipe.

    Trusted are root, the user of this process and, for root, the owner of the data files. The owner and root can take
    the permission to write away from others, which `create` does. A directory that does not exist is safe.
    """
    me = os.geteuid()
    with os_errors_of(f"--data {data}"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        trusted = trusted_users(data)
        for found in (data.lstat(), data.stat()):  # the directory may be behind a link, which has an owner too
            if found.st_uid not in trusted:
                raise _of_another_user(data, found.st_uid)
        if found.st_mode & WRITABLE_BY_OTHERS and me not in (0, found.st_uid):
            raise _writable_by_others(data)
        for path in own_files(data):
            with contextlib.suppress(FileNotFoundError):  # a running command creates and removes files
                if kind := _odd_kind(path):
                    raise OperatorError(f"Refusing to open {path}: it is a {kind}. Remove it with `rm {path}`.")


def trusted_users(data: Path) -> set[int]:
    """Users who could change the data anyway: root, the user of this process and, for root, the owner of the data."""
    me = os.geteuid()
    return {0, me, *(_owners_of_data(data) if me == 0 else ())}


def check_target(file: Path, trusted: Collection[int]) -> None:
    """Raises OperatorError if the file that a command is to write is a link, or if another user could replace it.

    In a directory with the sticky bit, such as /tmp, a user can replace only their own files.
    """
    with os_errors_of(file):
        if file.is_symlink():
            raise OperatorError(f"{file}: is a symbolic link; remove it, or choose another name")
        found = file.absolute().parent.stat()
        if found.st_uid not in trusted:
            owner = user_name(found.st_uid)
            raise OperatorError(f"{file}: the directory belongs to {owner}, who could replace the file; choose another")
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise OperatorError(f"{file}: every user can write to the directory; choose another")


def _owners_of_data(data: Path) -> Iterator[int]:
    for name in DATA_FILES:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield (data / name).lstat().st_uid


def _of_another_user(data: Path, owner: int) -> OperatorError:
    name, me = user_name(owner), user_name(os.geteuid())
    return OperatorError(
        f"--data {data}: belongs to {name}, who could replace the data; if {name} runs the service, type"
        f" sudo -u {name} petstore …, otherwise, as root, chown -R {me} {data}"
    )


def _writable_by_others(data: Path) -> OperatorError:
    return OperatorError(f"--data {data}: other users can write there; as its owner or root, type chmod go-w {data}")


def _odd_kind(path: Path) -> str:
    """Returns the kind of a file that is a symlink, a pipe or a device, and an empty string for other files.

    LMDB and prometheus-client would follow a symlink and wait for a pipe.
    """
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISSOCK(mode):
        return ""
    return "symlink" if stat.S_ISLNK(mode) else "pipe" if stat.S_ISFIFO(mode) else "device"


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """A descriptor of a file in the data directory; a new file is its owner's alone.

    Raises OSError, also for a link, a directory, a pipe or a device.
    """
    return open_regular(path, flags | os.O_NOFOLLOW)


def open_regular(path: Path | str, flags: int) -> int:
    """Raises OSError, also for what is no regular file."""
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)  # NONBLOCK: a pipe would wait
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return file


def read_text(path: Path) -> str:
    """The content of a small file in the data directory. Raises OSError."""
    with os.fdopen(open_file(path, os.O_RDONLY)) as file:
        return file.read()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """A new file that gets its name at the end of the body: no reader sees half of it. Raises OSError.

    Until then the file has a name that nobody can know, so that nobody can put a link there.
    """
    part = path.with_name(f".petstore-{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(
            open_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8", newline=""
        ) as file:
            yield file
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def touch(path: Path) -> None:
    """Create an empty file in the data directory, or set its time to now. Raises OSError."""
    file = open_file(path)
    try:
        os.utime(file)
    finally:
        os.close(file)


def is_directory(path: Path) -> bool:
    """Whether this is a directory, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_data(data: Path, hint: str = "") -> None:
    """Raises NoData, and OperatorError when the directory may not be entered. Creates nothing."""
    if not has_data(data):
        raise NoData(data, hint)


def readable_by_others(data: Path) -> list[Path]:
    """The directory and our files in it, if users other than the owner have any permission for them."""
    found = []
    for path in (data, *own_files(data)):
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
        file = open_file(data / LOCK, os.O_RDONLY)
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
        file = open_file(data / LOCK)
        # After a command of root, the service's user must still be able to open the lock. A file with a second name
        # may be any file.
        if os.geteuid() == 0 and os.fstat(file).st_nlink == 1:
            os.fchown(file, data.stat().st_uid, data.stat().st_gid)
    except OSError as error:
        raise OperatorError(f"{data / LOCK}: {error.strerror}; run this as the owner of the directory") from error
    return file


def _try_shared(file: int, data: Path) -> bool:
    """Take the shared lock. Where a restore was interrupted, complete it first; the caller then tries again."""
    if not _try_lock(file, fcntl.LOCK_SH):
        return False
    if not is_directory(data / READY):
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


@contextlib.contextmanager
def stage_restore(data: Path) -> Iterator[Path]:
    """A subdirectory for the files of a restore. The caller has the exclusive lock.

    At the end of the body the subdirectory is removed, unless the body has called `commit_restore`.
    """
    stage = data / STAGE
    shutil.rmtree(stage, ignore_errors=True)
    for directory in (stage, stage / NEW, stage / OLD):
        directory.mkdir(mode=0o700)  # fails for a link, which rmtree leaves
    try:
        yield stage / NEW
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def commit_restore(data: Path) -> Path | None:
    """Put the staged files in force. Returns the subdirectory with the old files, if there were any."""
    new = data / STAGE / NEW
    for path in (*new.iterdir(), new, data / STAGE):
        sync(path)
    (data / STAGE).rename(data / READY)
    sync(data)
    return complete_restore(data)


def complete_restore(data: Path) -> Path | None:
    """Moves the files of a committed restore to their names. If a crash interrupts this, the next call completes it.

    Renames the gate file, so that limits start again.
    """
    ready = data / READY
    if not is_directory(ready):
        return None
    new, old = ready / NEW, ready / OLD
    for name in DATA_FILES:
        is_staged = os.path.lexists(new / name)
        if is_staged or name not in STORE_FILES:  # a file of the store that is not staged any more is in force
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
