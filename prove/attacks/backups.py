"""Forged backups with a valid checksum: more data than the manifest says, a huge manifest, SQL that runs on restore.

Figures: the most memory and disk space that a restore or a verification uses before it refuses a backup.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness.claims import hold, temporary_directory
from harness.commands import Commands
from harness.forged_backups import FORGED_SQL, Text, Zeros, forge, manifest_of, rewrite
from harness.servers import Server
from prove.attacks.altered import program
from prove.attacks.processes import MEBIBYTE, megabytes
from prove.proof import Figures, Parts, Scale

MEMORY_MAX = DISK_MAX = 32 * MEBIBYTE  # memory is measured in addition to what refusing a text file uses
TIMEOUT = 120


def prove(scale: Scale) -> Figures:
    # With the planted fault, the command unpacks whole files. These exceed the bounds, but fit on any machine.
    behind, manifest = (2048, 1536) if scale.full and not scale.plant else (96, 96)
    words = program("backups_of_any_size", "backups_with_any_schema") if scale.plant else program()
    memory = disk = refused = 0
    parts = Parts(scale)
    with temporary_directory() as data:
        no_backup = data / "text.zip"
        no_backup.write_text("no backup" * 20)
        base, _, _ = _run(["petstore"], ["restore", str(no_backup)], data / "base")
        behind_file, manifest_file = data / "behind.zip", data / "manifest.zip"
        forge(behind_file, manifest_of(100), Zeros("live.db", behind), Zeros("staging.db", 1))
        forge(manifest_file, Zeros("manifest.json", manifest), Text("live.db", b""), Text("staging.db", b""))
        forged = _with_forged_sql(data)
        for file in (behind_file, manifest_file, *forged):
            for command in (["restore", str(file)], ["backup", "--verify", str(file)])[: 2 if scale.full else 1]:
                with parts.part():
                    used, written, message = _run(words, command, data / file.stem)
                    memory, disk = max(memory, used - base), max(disk, written)
                    refused += 1
                    hold(message.count("\n") == 1, f"{command[0]} refuses {file.name} in one line: {message[-300:]}")
                    hold(used - base <= MEMORY_MAX, f"{megabytes(used - base)} MiB of memory were used")
                    hold(written <= DISK_MAX, f"{megabytes(written)} MiB of disk space were used")
    parts.judge()
    return {"MiB behind a manifest that claims 100 bytes": behind, "MiB of a manifest": manifest,
            "with SQL that Petstore has not made": len(forged), "refused": refused,
            "most memory MiB": megabytes(max(0, memory)), "most disk MiB": megabytes(disk)}  # fmt: skip


def _with_forged_sql(data: Path) -> list[Path]:
    """Returns backups that are valid except for a trigger, a view or a table."""
    commands = Commands(Server(data / "good"))
    commands.text("pets", "add", "--name", "Rex", "--category-id", "1")
    commands.text("backup", str(data / "good.zip"))
    made = [data / f"forged-{number}.zip" for number in range(len(FORGED_SQL))]
    for file, sql in zip(made, FORGED_SQL.values(), strict=True):
        rewrite(data / "good.zip", file, sql)
    return made


def _run(words: list[str], command: list[str], work: Path) -> tuple[int, int, str]:
    """Runs a command that must fail. Returns its maximum memory and disk space, and its message. Raises Broken."""
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
    message = output.read_text()
    hold(process.returncode != 0, f"{' '.join(command)} fails: {message[-200:]}")
    return usage.ru_maxrss * 1024, max(sizes), message


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
            with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                total += os.lstat(f"{parent}/{name}").st_blocks * 512
    return total
