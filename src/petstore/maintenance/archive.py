"""The backup format: a zip file that ends with the SHA-256 of all preceding bytes.

Any zip program can open it. `manifest.json` records the members, the time of the backup, and the Petstore version.
"""

import errno
import hashlib
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import msgspec

from petstore.errors import OperatorError
from petstore.files import open_file, os_errors_of, sync

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_MAX = 1024 * 1024  # bytes
CHUNK = 1024 * 1024
READ_MAX = 4 * CHUNK  # the maximum number of bytes that zipfile may read at a time
CHECKSUM = 64  # hexadecimal digits of the SHA-256 in the zip file's comment

Progress = Callable[[int], None]


class Member(msgspec.Struct, frozen=True):
    name: str
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    schema: int  # the schema version; a release with an older schema cannot restore the backup
    rows: dict[str, int]


class Manifest(msgspec.Struct, frozen=True):
    format: int
    petstore: str  # the version of Petstore
    began: str  # the backup contains every animal that was added before this time
    members: list[Member]

    @property
    def size(self) -> int:
        return sum(member.bytes for member in self.members)


class Damaged(OperatorError):
    """Raised if a file is damaged, incomplete or not a backup."""


def write(target: Path, source: Path, manifest: Manifest, progress: Progress) -> None:
    """Writes a backup of the files in the directory `source` to `target`. Raises OperatorError on failure.

    Creates the zip file in `source`, which only its owner can read, and moves it to `target` once it is complete and
    synced.
    """
    part = source / "backup.part"
    with os_errors_of(target):
        with create_private(part) as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                archive.comment = b"0" * CHECKSUM
                archive.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
                for member in manifest.members:
                    with (
                        (source / member.name).open("rb") as content,
                        archive.open(member.name, "w", force_zip64=True) as entry,
                    ):
                        while chunk := content.read(CHUNK):
                            entry.write(chunk)
                            progress(len(chunk))
            checksum = _digest(file, file.seek(0, os.SEEK_END) - CHECKSUM)
            file.seek(-CHECKSUM, os.SEEK_END)
            file.write(checksum.encode())
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        sync(target.absolute().parent)


def create_private(path: Path) -> IO[bytes]:
    """Creates a file that only its owner can read. Raises OSError, for example if the file already exists."""
    return os.fdopen(open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), "wb+")


def read(path: Path) -> Manifest:
    """Verifies a backup's checksum and returns the backup's manifest. Raises OperatorError on failure."""
    with _opened(path) as archive:
        try:
            with archive.open(MANIFEST) as entry:
                text = entry.read(MANIFEST_MAX + 1)
            if len(text) > MANIFEST_MAX:
                raise Damaged(f"{path}: the manifest is larger than {MANIFEST_MAX:,} bytes")
            manifest = msgspec.json.decode(text, type=Manifest)
        except (KeyError, msgspec.DecodeError) as error:
            raise Damaged(f"{path}: is not a Petstore backup") from error
        if manifest.format > FORMAT:
            raise OperatorError(f"{path}: was written by a newer Petstore ({manifest.petstore}); upgrade Petstore")
        if sorted([MANIFEST, *(member.name for member in manifest.members)]) != sorted(archive.namelist()):
            raise Damaged(f"{path}: the members do not match the manifest")
        return manifest


def unpack(path: Path, manifest: Manifest, target: Path, progress: Progress) -> None:
    """Extracts the members to a directory and checks them against the manifest. Raises OperatorError on failure.

    Extracts no more bytes than the manifest specifies, so that a forged backup cannot fill the disk.
    """
    with _opened(path) as archive:
        for member in manifest.members:
            with archive.open(member.name) as entry:
                size = _copy(entry, target / member.name, member.bytes, progress)
            if size != member.bytes:
                raise Damaged(f"{path}: {member.name} does not match the manifest")


def _copy(source: IO[bytes], target: Path, size_max: int, progress: Progress) -> int:
    """Copies at most `size_max` bytes. Returns a larger number if the source is larger. Raises OperatorError."""
    size = 0
    with os_errors_of(target), create_private(target) as file:
        while chunk := source.read(min(CHUNK, size_max + 1 - size)):
            size += len(chunk)
            if size > size_max:
                break
            file.write(chunk)
            progress(len(chunk))
    return size


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Verifies the checksum and opens the zip file. Raises OperatorError on failure."""
    try:
        with os_errors_of(path), _BoundedFile(path, opener=_open_regular) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - CHECKSUM))
            checksum = file.read(CHECKSUM)
            if size < CHECKSUM or _digest(file, size - CHECKSUM).encode() != checksum:
                raise Damaged(f"{path}: is damaged, incomplete, or not a Petstore backup; nothing was changed")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                # Reject other compression methods, because zipfile does not limit how much memory they use.
                methods = {info.compress_type for info in archive.filelist}
                is_encrypted = any(info.flag_bits & 1 for info in archive.filelist)
                if is_encrypted or not methods <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                    raise Damaged(f"{path}: is not a Petstore backup")
                yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError) as error:
        raise Damaged(f"{path}: is not a Petstore backup") from error


def _open_regular(path: str, flags: int) -> int:
    """Opens a regular file and returns its descriptor. Raises OSError, for example if the path is a pipe."""
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK, because opening a pipe could block
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return file


class _BoundedFile(io.FileIO):
    """A file that rejects large reads.

    zipfile reads the whole list of members into memory, and the list in a forged backup may be huge.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises BadZipFile if more than READ_MAX bytes would be read."""
        remaining = max(0, os.fstat(self.fileno()).st_size - self.tell())
        size = remaining if size is None or size < 0 else min(size, remaining)
        if size > READ_MAX:
            raise zipfile.BadZipFile(f"a read of {size} bytes")
        return super().read(size) or b""


def _digest(file: IO[bytes], size: int) -> str:
    """Returns the SHA-256 of the first `size` bytes of a file."""
    file.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()
