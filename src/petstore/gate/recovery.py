"""Recovery of the gate's file: whether it can be used after a crash, and whether this version wrote it at all.

The file is not synced while it is in use. A crash of a process loses nothing, because the kernel has the pages. After a
power cut, pages of different ages may be on disk, which LMDB can read but which count wrong. So a note next to the file
names the boot of the machine in which the file is in use, or says that the whole file is on disk.

- The note names another boot, or there is a note and LMDB cannot read the file: it is damaged and is set aside.
- LMDB can read the file, but its format record is missing or has another number: the file is refused and not changed.
- There is no note, and LMDB cannot read the file: Petstore never used it, so it is refused, too.
- The file is empty or has no records: a start was killed, and the next one continues.
"""

import contextlib
import logging
import os
import signal
import time
from pathlib import Path

import lmdb

from petstore.errors import OperatorError, Unavailable
from petstore.files import read_text, replacing, sync
from petstore.observability.logs import event

# Written in the transaction that creates the versions, which have the same first byte.
FORMAT_RECORD, FORMAT = b"vformat", b"1"

# What the note says if it does not name a boot.
SYNCED = "synced"
UNKNOWN_BOOT = "unknown"  # in use, but the boot id cannot be read

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def mark_in_use(path: Path) -> None:
    """Note the boot. Must be called before the file is opened for writing. Raises OSError."""
    _write_note(path, _boot_id())


def mark_clean(path: Path) -> None:
    """Sync the file and note it. Must be called only when no process uses the file any more."""
    with contextlib.suppress(OSError):  # without this note, the next start sets the file aside, which is safe
        sync(path)
        _write_note(path, SYNCED)


def is_clean(path: Path, *, in_use: bool = False) -> bool:
    """Whether no power cut can have mixed the pages of the file. Reads the note, not the file.

    `in_use`: a process is using the file. Then the machine has not been down since that process opened it, so an
    unknown boot is this boot.
    """
    try:
        note, boot_id = read_text(_note(path)), _boot_id()
    except OSError:  # no note: the file is new. A note without read permission: opening the file reports that
        return True
    return note in (SYNCED, boot_id) or (in_use and UNKNOWN_BOOT in (note, boot_id))


def was_used(path: Path) -> bool:
    """Whether Petstore has ever opened the file for writing."""
    return _note(path).exists()


def recover(path: Path) -> Path | None:
    """Rename a damaged file, so that the gate starts with new counters. Returns the new path.

    Returns None if the file can be used or does not exist. Must be called only while no process uses the file.
    Raises OperatorError if this version does not recognise the file, or if this user has no permission to write it:
    its counters and bans are not dropped for that.
    """
    for file in (path, _note(path)):
        if file.exists() and not os.access(file, os.R_OK | os.W_OK):
            raise OperatorError(f"{file}: no permission to read and write it; make the service's user its owner")
    if not path.exists():
        return None
    if is_clean(path):
        if path.stat().st_size == 0 or readable(path):
            check_format(path)
            return None
        if not was_used(path):
            raise not_recognised(path)
    damaged = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    path.rename(damaged)
    _lock_file(path).unlink(missing_ok=True)
    event(logging.ERROR, "gate file damaged", set_aside=str(damaged), effect="counters start from zero")
    return damaged


def check_format(path: Path) -> None:
    """Refuse a file that this version did not write, without changing it.

    Raises OperatorError, and Unavailable if LMDB cannot read the file.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        # Without a lock file, no process has the file open, and reading it must not create one.
        lock = _lock_file(path).exists()
        with lmdb.open(str(path), subdir=False, readonly=True, lock=lock) as env, env.begin() as txn:
            is_new, found = env.stat()["entries"] == 0, txn.get(FORMAT_RECORD, b"")
    except lmdb.Error as error:
        raise Unavailable(f"{path}: cannot be opened: {error}; run `petstore check`") from error
    if is_new or found == FORMAT:
        return
    if found.isdigit() and int(found) > int(FORMAT):
        raise OperatorError(f"{path} was written by a newer Petstore; run that version, or choose another --data")
    raise not_recognised(path)


def not_recognised(path: Path) -> OperatorError:
    return OperatorError(
        f"{path}: not a gate file that this Petstore recognises, so it is left as it is;"
        " move it away, or choose another --data"
    )


def readable(path: Path, *, in_use: bool = False) -> bool:
    """Whether LMDB can read all of the file. A child process reads it, because a damaged file can cause a SIGBUS.

    `in_use`: read under LMDB's lock, because other processes may write pages at the same time.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for fault in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
                signal.signal(fault, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with lmdb.open(str(path), subdir=False, readonly=True, lock=in_use) as env, env.begin() as txn:
                for _ in txn.cursor():
                    pass  # the cursor copies each name and value, so every page is read
                code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _boot_id() -> str:
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return UNKNOWN_BOOT


def _note(path: Path) -> Path:
    return path.with_name(path.name + "-boot")


def _lock_file(path: Path) -> Path:
    """LMDB's own."""
    return path.with_name(path.name + "-lock")


def _write_note(path: Path, text: str) -> None:
    """Returns when the note's content and name are on disk. Raises OSError."""
    note = _note(path)
    with contextlib.suppress(FileNotFoundError):
        if read_text(note) == text:
            return
    with replacing(note) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync(note.parent)
