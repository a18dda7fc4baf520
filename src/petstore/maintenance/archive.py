"""A backup file: a zip that ends in the SHA-256 of all that precedes, so that no byte of it can change unseen.

Any zip program can look into it. `manifest.json` says what it holds and when, and with which version, it was made.
"""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from petstore.errors import OperatorError

FORMAT = 1
MANIFEST = "manifest.json"
CHUNK = 1024 * 1024
SEAL = 64  # characters of a SHA-256; the comment that ends the zip

Progress = Callable[[int], None]


class Member(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    sha256: str
    schema: int | None = None  # of a store; a newer one than ours cannot be restored
    rows: dict[str, int] = {}


class Manifest(msgspec.Struct, frozen=True):
    format: int
    petstore: str  # the version that wrote it
    began: str  # whatever was acknowledged before is in it
    members: list[Member]

    @property
    def size(self) -> int:
        return sum(member.bytes for member in self.members)


class Damaged(OperatorError):
    """The file is not what it was when it was written."""


def write(target: Path, source: Path, manifest: Manifest, progress: Progress) -> None:
    """Put the members, which lie in the folder `source`, into a file, which has its name only when it is on disk.

    Raises OperatorError.
    """
    part = target.with_name(f"{target.name}.{os.getpid()}.part")  # two at once must not write the same
    try:
        with part.open("wb+") as file:
            part.chmod(0o600)  # it holds the hashes of all keys
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                archive.comment = b"0" * SEAL
                archive.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
                for member in manifest.members:
                    with (
                        (source / member.name).open("rb") as content,
                        archive.open(member.name, "w", force_zip64=True) as entry,
                    ):
                        while chunk := content.read(CHUNK):
                            entry.write(chunk)
                            progress(len(chunk))
            seal = _digest(file, file.seek(0, os.SEEK_END) - SEAL)
            file.seek(-SEAL, os.SEEK_END)
            file.write(seal.encode())
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        folder = os.open(target.absolute().parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        raise OperatorError(f"{target}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> Manifest:
    """What a file says that it holds, once it is certain that it says what was written. Raises OperatorError."""
    with _opened(path) as archive:
        try:
            manifest = msgspec.json.decode(archive.read(MANIFEST), type=Manifest)
        except (KeyError, msgspec.DecodeError) as error:
            raise Damaged(f"{path}: is not a backup of Petstore") from error
        if manifest.format > FORMAT:
            raise OperatorError(f"{path}: was written by a newer Petstore ({manifest.petstore}); upgrade Petstore")
        if {MANIFEST, *(member.name for member in manifest.members)} != set(archive.namelist()):
            raise Damaged(f"{path}: does not hold what its manifest says")
        return manifest


def unpack(path: Path, manifest: Manifest, folder: Path, progress: Progress) -> None:
    """Bring the members into a folder, each compared with the manifest. Raises OperatorError."""
    with _opened(path) as archive:
        for member in manifest.members:
            with archive.open(member.name) as entry:
                found = _copy(entry, folder / member.name, progress)
            if found != (member.sha256, member.bytes):
                raise Damaged(f"{path}: {member.name} is not what the manifest says")


def _copy(source: IO[bytes], target: Path, progress: Progress) -> tuple[str, int]:
    """The digest and the size of what was copied. Raises OperatorError."""
    digest, size = hashlib.sha256(), 0
    try:
        with target.open("xb") as file:
            target.chmod(0o600)
            while chunk := source.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                progress(len(chunk))
    except OSError as error:
        raise OperatorError(f"{target}: {error.strerror}") from error
    return digest.hexdigest(), size


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_archive(path: Path) -> bool:
    """Whether a file looks like one of ours, sound or not. Raises OperatorError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}") from error


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The file, whose seal is compared first. Raises OperatorError."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - SEAL))
            seal = file.read(SEAL)
            if size < SEAL or _digest(file, size - SEAL).encode() != seal:
                raise Damaged(f"{path}: is damaged, cut short, or not a backup of Petstore; nothing was done with it")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise Damaged(f"{path}: is not a backup of Petstore") from error
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}") from error


def _digest(file: IO[bytes], size: int) -> str:
    """Of the first so many bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()
