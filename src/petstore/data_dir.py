"""The data folder: what is in it, who works on it, and how a restore replaces all of it at once.

Whoever works on the data holds a shared lock, which the kernel releases whenever and however the process ends. A copy
wants the folder for itself, and so does a restore. That lays the new data ready and then renames one folder, which is
the moment that counts: before it the old data stand, after it the new ones do, and whoever comes next finishes what a
crash cut short.
"""

import contextlib
import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from petstore.errors import OperatorError

DATA = ("live.db", "staging.db", "gate.mdb")
COMPANIONS = ("-wal", "-shm", "-lock", "-boot")  # what SQLite and LMDB keep beside a file

PATIENCE = 5.0  # seconds: a service that starts or stops has the folder for itself for a moment

LOCK = "lock"
LAST_BACKUP = "last-backup"  # touched by every backup
STAGE = "restore.part"  # being laid ready, or done with; worth nothing
READY = "restore"  # laid ready: it has become the data, wherever its files still lie
NEW, OLD, MEMBERS = "new", "old", "members"
OWN = (LOCK, LAST_BACKUP, STAGE, "metrics", "lost+found")  # what an empty folder may have


@contextlib.contextmanager
def told(subject: object) -> Iterator[None]:
    """What the file system refuses becomes one clear line. Raises OperatorError."""
    try:
        yield
    except OSError as error:
        raise OperatorError(f"{subject}: {error.strerror}") from error


def check_name(path: Path) -> None:
    """SQLite and LMDB open what has a name in UTF-8. Raises OperatorError."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise OperatorError(f"{path}: the name, or that of a folder above, is not UTF-8; choose another") from None


def prepare(data: Path) -> None:
    """Make the folder. Raises OperatorError when it cannot be used."""
    check_name(data)
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError:
        raise OperatorError(f"--data {data}: is not a folder") from None
    except OSError as error:
        raise OperatorError(f"--data {data}: {error.strerror}") from error
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        raise OperatorError(f"--data {data}: no rights to write there")


def _opened_lock(data: Path) -> int:
    """Raises OperatorError."""
    prepare(data)
    try:
        file = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.geteuid() == 0:  # a command that root runs must not lock the service's user out
            os.fchown(file, data.stat().st_uid, data.stat().st_gid)
    except OSError as error:
        raise OperatorError(f"{data / LOCK}: {error.strerror}; run this as the user who owns the folder") from error
    return file


class InUse(OperatorError):
    """Someone works on the folder."""


class Hold:
    """Says that someone works on the data. Children of a process that holds it hold it too."""

    def __init__(self, data: Path) -> None:
        """Raises OperatorError while somebody has the folder alone."""
        self._file = _opened_lock(data)
        try:
            self._take(data)
        except BaseException:
            os.close(self._file)
            raise

    def _take(self, data: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if not (data / READY).exists():
                    return
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                finish(data)
            except BlockingIOError:
                fcntl.flock(self._file, fcntl.LOCK_UN)  # of two who want it alone, each would wait for the other
                if time.monotonic() > deadline:
                    raise InUse(f"--data {data}: a restore or a copy is under way there; wait for its end") from None
                time.sleep(0.01 + os.getpid() % 20 / 1000)  # not in step with the other

    def release(self) -> None:
        os.close(self._file)


@contextlib.contextmanager
def claimed(data: Path) -> Iterator[None]:
    """The folder for oneself. Raises InUse."""
    file = _opened_lock(data)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finish(data)
        yield
    except BlockingIOError:
        raise InUse(f"--data {data}: a service or a command works on it; stop it first") from None
    finally:
        os.close(file)


def in_use(data: Path) -> bool:
    """For whoever only looks, and must not make a lock."""
    try:
        file = os.open(data / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def contents(data: Path) -> list[str]:
    """What makes a folder not empty."""
    return sorted(path.name for path in data.iterdir() if path.name not in OWN)


@contextlib.contextmanager
def staged(data: Path) -> Iterator[Path]:
    """A place on the same file system to lay new data ready in, for whoever has claimed the folder.

    Unless `accept` is called within, nothing of it remains.
    """
    stage = data / STAGE
    shutil.rmtree(stage, ignore_errors=True)
    (stage / NEW).mkdir(parents=True, mode=0o700)
    (stage / OLD).mkdir(mode=0o700)
    try:
        yield stage / NEW
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def accept(data: Path) -> Path | None:
    """What was laid ready becomes the data. Returns where the old files are, if there were any."""
    new = data / STAGE / NEW
    (data / STAGE / MEMBERS).write_text("\n".join(sorted(path.name for path in new.iterdir())))
    for path in (*new.iterdir(), data / STAGE / MEMBERS, new, data / STAGE):
        sync(path)
    (data / STAGE).rename(data / READY)
    sync(data)
    return finish(data)


def finish(data: Path) -> Path | None:
    """Bring the files of an accepted restore to their places. May be cut short anywhere, and repeated."""
    ready = data / READY
    if not ready.exists():
        return None
    new, old = ready / NEW, ready / OLD
    members = (ready / MEMBERS).read_text().split("\n")
    for name in DATA:
        coming = (new / name).exists()
        if coming or name not in members:
            for there in (name, *(name + companion for companion in COMPANIONS)):
                with contextlib.suppress(FileNotFoundError):
                    (data / there).rename(old / there)
        if coming:
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
    """To the disk: a file's content, or a folder's names. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
