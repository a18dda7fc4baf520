"""Whether the gate's file can be believed.

Nothing in it is synced while it is in use. That is safe while the kernel lives; after a power cut the file may be a
mixture of old and new pages that reads well and counts wrong. So a note beside it names the boot it was last used in.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import lmdb

from petstore.errors import OperatorError

SYNCED = "synced"
UNTOLD = "untold"  # in use, and in which boot could not be told: a sandbox may hide it
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def mark_in_use(path: Path) -> None:
    """To be called before the file is opened for writing. Raises OSError."""
    _note(path, _boot())


def mark_clean(path: Path) -> None:
    """To be called when nobody uses the file any more: all of it is on disk, so a reboot does no harm."""
    with contextlib.suppress(OSError):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        _note(path, SYNCED)


def recover(path: Path) -> Path | None:
    """Where a file that cannot be believed was moved, or None when there was nothing wrong.

    Raises OperatorError when it is somebody else's: that is no reason to forget its counters and bans.
    """
    for file in (path, _note_of(path)):
        if file.exists() and not os.access(file, os.R_OK | os.W_OK):
            raise OperatorError(f"{file}: no rights to read and write it; chown it to the user of this service")
    if not path.exists() or (is_clean(path) and readable(path)):
        return None
    aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    path.rename(aside)
    with contextlib.suppress(FileNotFoundError):
        path.with_name(path.name + "-lock").unlink()
    return aside


def readable(path: Path, *, in_use: bool = False) -> bool:
    """Read from end to end, in a process of its own, since reading a damaged map can end in a SIGBUS.

    In use, it is read as by one of its users, under LMDB's lock: otherwise pages are overwritten meanwhile.
    """
    child = os.fork()
    if child == 0:
        for fault in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
            signal.signal(fault, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code = 1
        try:
            with lmdb.open(str(path), subdir=False, readonly=True, lock=in_use) as env, env.begin() as txn:
                for _ in txn.cursor():
                    pass  # each name and value is copied out, so all of it was read
                code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def is_clean(path: Path, *, in_use: bool = False) -> bool:
    """Not a file that was in use when its machine went down.

    A boot that cannot be told is not another one while somebody has the file in use: they have seen no power cut.
    """
    try:
        noted, boot = _note_of(path).read_text(), _boot()
    except OSError:  # there is no note, or whoever opens the file will be told why it cannot be read
        return True
    return noted in (SYNCED, boot) or (in_use and UNTOLD in (noted, boot))


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return UNTOLD


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + "-boot")


def _note(path: Path, text: str) -> None:
    """On disk before this returns, the name as well as the content."""
    note = _note_of(path)
    with contextlib.suppress(FileNotFoundError):
        if note.read_text() == text:
            return
    part = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        with part.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.rename(note)
    finally:
        part.unlink(missing_ok=True)  # still there on a full disk
    folder = os.open(note.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
