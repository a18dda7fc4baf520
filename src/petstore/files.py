"""Opens, writes and replaces files safely.

By creating a symlink in the right place, another user could trick a command into overwriting any file. For this reason,
files are never written through a symlink or where an untrusted user could replace them.
"""

import contextlib
import errno
import os
import pwd
import secrets
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from petstore.errors import OperatorError


@contextlib.contextmanager
def os_errors_of(subject: object) -> Iterator[None]:
    """Converts an OSError raised in the `with` block to an OperatorError whose message starts with the subject."""
    try:
        yield
    except OSError as error:
        raise OperatorError(f"{subject}: {error.strerror}") from error


def exists(path: Path) -> bool:
    """Like `Path.exists`, but raises PermissionError if access is denied.

    Since Python 3.14, `Path.exists` returns False in that case.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_encoding(path: Path) -> None:
    """Raises OperatorError if the path is not valid UTF-8, because SQLite and LMDB cannot open such a path."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise OperatorError(f"{path}: the path is not UTF-8; choose another") from None


def is_directory(path: Path) -> bool:
    """Whether the path is a directory. Returns False for a symlink to a directory."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Opens a file in the data directory and returns its descriptor. New files are readable only by their owner.

    Raises OSError, for example if the path is a symlink, a directory, a pipe or a device.
    """
    return open_regular(path, flags | os.O_NOFOLLOW)


def open_regular(path: Path | str, flags: int) -> int:
    """Opens a regular file and returns its descriptor. Raises OSError, for example if the path is a directory."""
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)  # O_NONBLOCK, because opening a pipe could block
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return file


def read_text(path: Path) -> str:
    """Returns the contents of a small file in the data directory. Raises OSError."""
    with os.fdopen(open_file(path, os.O_RDONLY)) as file:
        return file.read()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """Replaces a file atomically: yields a temporary file, and renames it on success. Raises OSError.

    The temporary file has an unpredictable name, so that no one can create a symlink with that name first.
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
    """Creates an empty file in the data directory, or updates its modification time. Raises OSError."""
    file = open_file(path)
    try:
        os.utime(file)
    finally:
        os.close(file)


def sync(path: Path) -> None:
    """Calls fsync on a file or a directory. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def check_target(file: Path, trusted: Collection[int]) -> None:
    """Raises OperatorError if the output file is a symlink, or if an untrusted user could replace it.

    World-writable directories are accepted if they have the sticky bit, which lets users replace only their own files.
    """
    with os_errors_of(file):
        if file.is_symlink():
            raise OperatorError(f"{file} is a symlink; remove it, or choose another name")
        found = file.absolute().parent.stat()
        if found.st_uid not in trusted:
            owner = user_name(found.st_uid)
            raise OperatorError(f"{file}: the directory belongs to {owner}, who could replace the file; choose another")
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise OperatorError(f"{file}: every user can write to this directory; choose another")


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
