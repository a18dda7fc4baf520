"""Files and directories: how they are opened, written and replaced, and who could change them.

A user who could put a link where a command writes would choose the file that is written. Links are therefore not
followed, and a file is not written where another user could replace it.
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
    """Turns an OSError of the body into an OperatorError that starts with the subject."""
    try:
        yield
    except OSError as error:
        raise OperatorError(f"{subject}: {error.strerror}") from error


def exists(path: Path) -> bool:
    """Raises PermissionError if it cannot be determined. Since Python 3.14, `Path.exists` returns False then."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_encoding(path: Path) -> None:
    """Raises OperatorError for a path that is not UTF-8, which SQLite and LMDB cannot open."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise OperatorError(f"{path}: the path is not UTF-8; choose another") from None


def is_directory(path: Path) -> bool:
    """Whether this is a directory and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Opens a file in the data directory and returns its descriptor. Only the owner can read a new file.

    Raises OSError, including for a link, a directory, a pipe or a device.
    """
    return open_regular(path, flags | os.O_NOFOLLOW)


def open_regular(path: Path | str, flags: int) -> int:
    """Returns the descriptor. Raises OSError, including for anything that is not a regular file."""
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)  # NONBLOCK, because opening a pipe would wait
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return file


def read_text(path: Path) -> str:
    """Returns the content of a small file in the data directory. Raises OSError."""
    with os.fdopen(open_file(path, os.O_RDONLY)) as file:
        return file.read()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """Writes a file that gets its name at the end of the body, so that no reader sees half of it. Raises OSError.

    Until then, the file has an unpredictable name, so that nobody can put a link there.
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
    """Creates an empty file in the data directory, or sets its time to now. Raises OSError."""
    file = open_file(path)
    try:
        os.utime(file)
    finally:
        os.close(file)


def sync(path: Path) -> None:
    """Writes a file's content, or a directory's entries, to disk. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def check_target(file: Path, trusted: Collection[int]) -> None:
    """Raises OperatorError if the file to write is a link, or if an untrusted user could replace it.

    In a directory with the sticky bit, such as /tmp, users can replace only their own files.
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
