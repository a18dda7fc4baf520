"""Recovery of the gate file: decides whether it can be used after a crash, and whether this version can read it.

The file is not synced while it is in use. If a process crashes, nothing is lost, because the kernel still has the
pages. After a power cut, the file may contain a mix of old and new pages. LMDB might read it without an error even
though counters are wrong. To detect this, Petstore keeps a note next to the file. The note contains the machine's boot
id, or the word "synced" if the whole file is on disk.

- If the note contains a different boot id, the file may be damaged and is renamed. The file is also renamed if there is
  a note and LMDB cannot read the file.
- If LMDB can read the file but its format record is missing or unknown, Petstore refuses to use or change the file.
- If there is no note and LMDB cannot read the file, Petstore has never used it and refuses to use or change it.
- If the file is empty or contains no records, the process that created it was killed before it could initialise the
  file. The next start initialises it.
"""

import contextlib
import logging
import os
import signal
import time
from pathlib import Path

import lmdb

from petstore.errors import OperatorError, Unavailable
from petstore.files import replacing, sync
from petstore.observability.logs import event

# The format record is written in the same transaction as the initial versions. Its name has the same first byte.
FORMAT_RECORD, FORMAT = b"vformat", b"1"

# The words that the note can contain instead of a boot id.
SYNCED = "synced"
UNKNOWN_BOOT = "unknown"  # the file is in use, but the boot id could not be read

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def mark_in_use(path: Path) -> None:
    """Writes the boot id to the note. Must be called before opening the file for writing. Raises OSError."""
    _write_note(path, _boot_id())


def mark_clean(path: Path) -> None:
    """Syncs the file to disk and records that in the note. Must be called only if no process is using the file."""
    with contextlib.suppress(OSError):  # on failure, the file is treated as damaged after a reboot, which is safe
        sync(path)
        _write_note(path, SYNCED)


def is_clean(path: Path, *, in_use: bool = False) -> bool:
    """Whether the note shows that the file has not been damaged by a power cut. Does not read the file.

    A file that does not exist is clean, even if an older file has left a note. Set `in_use` if a process is using the
    file. In that case, the machine cannot have rebooted since the note was written, so an unknown boot id is treated as
    the current boot id.
    """
    if not path.exists():
        return True
    try:
        note, boot_id = _note(path).read_text(), _boot_id()
    except OSError:  # the note is missing or unreadable; opening the file will report any problem
        return True
    return note in (SYNCED, boot_id) or (in_use and UNKNOWN_BOOT in (note, boot_id))


def was_used(path: Path) -> bool:
    """Whether Petstore has ever opened the file for writing."""
    return _note(path).exists()


def recover(path: Path) -> Path | None:
    """Renames the file if it is damaged, so that the gate starts with new counters.

    Returns the new path, or None if the file is usable or does not exist. Must be called only while no process is using
    the file. Raises OperatorError, without changing the file, if this version does not recognise it.
    """
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
    """Raises OperatorError if this version cannot use the file, and Unavailable if LMDB cannot read it.

    Does not change the file.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        # If there is no lock file, no process has the file open, so disable locking to keep LMDB from creating one.
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
        f"{path}: not a gate file that this version of Petstore recognises, so it was not changed;"
        " move it elsewhere, or choose another --data"
    )


def readable(path: Path, *, in_use: bool = False) -> bool:
    """Whether LMDB can read the whole file. Reads it in a child process, because a damaged file can cause a SIGBUS.

    Set `in_use`, which enables LMDB's locking, if other processes may be writing to the file.
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
                    pass  # iteration reads every page, because it copies each name and value
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
    """Returns the path of LMDB's lock file."""
    return path.with_name(path.name + "-lock")


def _write_note(path: Path, text: str) -> None:
    """Writes the note, and syncs the note and its directory to disk. Raises OSError."""
    note = _note(path)
    with contextlib.suppress(FileNotFoundError):
        if note.read_text() == text:
            return
    with replacing(note) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync(note.parent)
