"""Opens, writes and replaces files safely.

By creating a symlink in the right place, another user could trick a command into overwriting any file. For this reason,
files are never written where an untrusted user could replace them. See data_dir.py for the data directory.
"""

import contextlib
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
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


def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Opens a file and returns its descriptor. New files are readable only by their owner. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """Replaces a file atomically: yields a temporary file, and renames it on success. Raises OSError.

    The temporary file has an unpredictable name, so that no one can create a symlink with that name first. Both files
    are in the directory that the path named at the start, even if it leads elsewhere by the end.
    """
    part = f".petstore-{secrets.token_hex(8)}.part"
    directory = os.open(path.absolute().parent, os.O_PATH | os.O_CLOEXEC)
    try:
        created = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        with os.fdopen(created, "w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(part, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=directory)
        os.close(directory)


def sync(path: Path) -> None:
    """Calls fsync on a file or a directory. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def check_target(file: Path) -> None:
    """Raises OperatorError if the output file is a symlink, or if an untrusted user could replace it."""
    with os_errors_of(file):
        if file.is_symlink():
            raise OperatorError(f"{file} is a symlink; remove it, or choose another name")
        check_place(file)


def check_place(path: Path) -> None:
    """Raises OperatorError if a user other than the current one and root could replace the path. Raises OSError.

    World-writable directories are accepted if they have the sticky bit, which lets users replace only their own files.
    """
    directory = path.absolute().parent
    found = directory.stat()
    if found.st_uid not in (0, os.geteuid()):
        other = user_name(found.st_uid)
    elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        other = "every user"
    else:
        return
    raise OperatorError(f"{path}: {other} can write to {directory} and could replace {path.name}; choose another place")


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
