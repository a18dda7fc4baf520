"""Mounts a small disk (a tmpfs) that a test or a proof can fill."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness.claims import Skipped


@contextlib.contextmanager
def small_disk(at: Path, mebibytes: int) -> Iterator[Path]:
    """Mounts a disk of this size on a new directory. Raises Skipped if the user is not allowed to mount disks."""
    at.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", at], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        raise Skipped(
            f"cannot mount a small disk: {mounted.stderr.strip()}; run as root, or use unshare -rm make prove"
        )
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def filled(ballast: Path) -> Path:
    """Fills the disk with this file. Returns the file's path."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return ballast
