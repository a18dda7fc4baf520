"""A queue for SQLite's write lock, across processes."""

import fcntl
import os
from pathlib import Path
from types import TracebackType


class WriteLock:
    """A file lock that a writer holds while it waits for SQLite's own lock.

    SQLite waits by sleeping and trying again, which starves some of several busy writers. The kernel wakes the waiters
    of a file lock in turn, and releases the lock of a process that dies.
    """

    def __init__(self, path: Path) -> None:
        """`path` is the database's."""
        self._path = path.with_name(path.name + "-turn")
        self._file: int | None = None

    def __enter__(self) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
