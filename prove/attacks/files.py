"""Another user on the same machine tries to open every file, after every file event and continuously in between.

Meanwhile, a service, commands, backups and a restore run with umask 000 in a directory that every user can list.
"""

import contextlib
import ctypes
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.claims import Skipped, hold
from harness.servers import Server
from harness.watched_files import NOBODY, open_directory, watched
from prove.attacks.altered import program
from prove.proof import Figures, Scale

IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_MOVED_TO, IN_CREATE = 0x2, 0x4, 0x8, 0x80, 0x100
EVENTS = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE
EVENT = struct.Struct("iIII")
libc = ctypes.CDLL(None, use_errno=True)


def prove(scale: Scale) -> Figures:
    if os.geteuid() != 0:
        raise Skipped("only root can become another user")
    rounds = 10 if scale.full else 1
    words = program("files_that_others_can_read") if scale.plant else program()
    with open_directory() as directory, watched(directory) as watch, _other_user(directory) as seen:
        server = Server(directory / "data")
        server.program = words
        server.log, server.clock_file = (Path(f"{directory}.{name}") for name in ("log", "clock"))
        before = os.umask(0)
        try:
            for number in range(rounds):
                _use(server, words, directory, number)
        finally:
            os.umask(before)
            server.kill()
            server.log.unlink(missing_ok=True)
    events, opened = seen[0], sorted({*seen[1:], *watch.read})
    hold(not opened, f"another user could open {len(opened)} files: {opened[:3]}")
    hold(not watch.open_modes, f"files have permissions for others: {sorted(watch.open_modes)[:3]}")
    hold({"live.db", "gate.mdb", f"backup-{rounds - 1}.zip"} <= watch.names, "the expected files were seen")
    return {"rounds": rounds, "events": int(events), "files seen": len(watch.names), "opened by another user": 0}


def _use(server: Server, words: list[str], directory: Path, number: int) -> None:
    backup = str(directory / f"backup-{number}.zip")
    server.start()
    _command(server, words, "pets", "add", "--name", "Rex", "--category-id", "1")
    _command(server, words, "backup", backup)
    server.stop()
    _command(server, words, "restore", backup, "--force")
    _command(server, words, "pets", "export", str(directory / f"pets-{number}.csv"))


def _command(server: Server, words: list[str], *command: str) -> None:
    variables = {**os.environ, **server.where}
    subprocess.run([sys.executable, "-m", *words, *command], env=variables, check=True, capture_output=True)


@contextlib.contextmanager
def _other_user(directory: Path) -> Iterator[list[str]]:
    """Opens files as the user nobody at each event. Yields a list, which gets the event count and opened paths."""
    seen: list[str] = []
    stop_read, stop_write = os.pipe()
    result_read, result_write = os.pipe()
    child = os.fork()
    if child == 0:
        lines = ["0", "the other user failed"]
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            lines = _open_at_events(str(directory), stop_read)
        finally:
            with os.fdopen(result_write, "w") as pipe:
                pipe.write("\n".join(lines))
            os._exit(0)
    os.close(result_write)
    try:
        yield seen
    finally:
        os.write(stop_write, b"x")
        with os.fdopen(result_read) as pipe:
            seen += pipe.read().splitlines()
        os.waitpid(child, 0)
        os.close(stop_read)
        os.close(stop_write)


def _open_at_events(directory: str, stop: int) -> list[str]:
    inotify = libc.inotify_init1(os.O_CLOEXEC)
    watches: dict[int, str] = {}
    opened: set[str] = set()
    events = 0
    _add_watch(inotify, directory, watches)
    while stop not in (ready := select.select([inotify, stop], [], [])[0]):
        assert ready
        data = os.read(inotify, 65536)
        while data:
            watch, _, _, length = EVENT.unpack_from(data)
            name = data[EVENT.size : EVENT.size + length].rstrip(b"\0").decode()
            data = data[EVENT.size + length :]
            events += 1
            path = f"{watches.get(watch, directory)}/{name}"
            if name and path not in opened:
                _try(inotify, path, watches, opened)
    return [str(events), *sorted(opened)]


def _try(inotify: int, path: str, watches: dict[int, str], opened: set[str]) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        opened.add(path)
        if Path(path).is_dir():
            _add_watch(inotify, path, watches)


def _add_watch(inotify: int, path: str, watches: dict[int, str]) -> None:
    watch = libc.inotify_add_watch(inotify, path.encode(), EVENTS)
    if watch >= 0:
        watches[watch] = path
