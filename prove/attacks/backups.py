"""Forged backups with a true checksum: far more behind a manifest than it claims, and a manifest that is too large.

Figures: the most memory and disk that restoring or verifying one takes before it is refused.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness.claims import folder, hold
from harness.forged_backups import Text, Zeros, forge, manifest_of
from prove.attacks.altered import program
from prove.attacks.processes import MEBIBYTE, megabytes
from prove.proof import Figures, Scale

MEMORY_MAX = DISK_MAX = 32 * MEBIBYTE  # beyond what the command takes to refuse a text file
TIMEOUT = 120


def prove(scale: Scale) -> Figures:
    # A planted fault takes what the file says: little enough for any machine, and more than the bounds.
    behind, manifest = (2048, 1536) if scale.full and not scale.plant else (96, 96)
    words = program("backups_of_any_size") if scale.plant else program()
    memory = disk = refused = 0
    with folder() as data:
        no_backup = data / "text.zip"
        no_backup.write_text("no backup" * 20)
        base, _, _ = _run(["petstore"], ["restore", str(no_backup)], data / "base")
        behind_file, manifest_file = data / "behind.zip", data / "manifest.zip"
        forge(behind_file, manifest_of(100), Zeros("live.db", behind), Zeros("staging.db", 1))
        forge(manifest_file, Zeros("manifest.json", manifest), Text("live.db", b""), Text("staging.db", b""))
        for file in (behind_file, manifest_file):
            for command in (["restore", str(file)], ["backup", "--verify", str(file)])[: 2 if scale.full else 1]:
                used, written, said = _run(words, command, data / "work")
                memory, disk = max(memory, used - base), max(disk, written)
                refused += 1
                hold(said.count("\n") == 1, f"{command[0]} of {file.name} is refused in one line, not {said[-300:]}")
    hold(memory <= MEMORY_MAX, f"{megabytes(memory)} MiB of memory were taken")
    hold(disk <= DISK_MAX, f"{megabytes(disk)} MiB of disk were taken")
    return {"MiB behind a manifest that claims 100 bytes": behind, "MiB of a manifest": manifest, "refused": refused,
            "most memory MiB": megabytes(max(0, memory)), "most disk MiB": megabytes(disk)}  # fmt: skip


def _run(words: list[str], command: list[str], work: Path) -> tuple[int, int, str]:
    """The most bytes of memory and of disk, and what the command says. Raises Broken unless it fails."""
    work.mkdir(exist_ok=True)
    variables = {**os.environ, "PETSTORE_DATA": str(work / "data"), "TMPDIR": str(work)}
    output = work.parent / "output"
    with output.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", *words, *command], stdout=file, stderr=file, env=variables)
    sizes = [0]
    watcher = threading.Thread(target=_watch, args=(process, work, sizes), daemon=True)
    watcher.start()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    watcher.join(TIMEOUT)
    said = output.read_text()
    hold(process.returncode != 0, f"{' '.join(command)} fails, and says {said[-200:]}")
    return usage.ru_maxrss * 1024, max(sizes), said


def _watch(process: subprocess.Popen[bytes], work: Path, sizes: list[int]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while process.returncode is None:
        sizes.append(_size_of(work))
        if time.monotonic() > deadline:
            process.kill()
            return
        time.sleep(0.005)


def _size_of(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                total += os.lstat(f"{parent}/{name}").st_blocks * 512
    return total
