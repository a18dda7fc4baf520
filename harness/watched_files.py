"""Simulates another user who keeps trying to read everything in a directory."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NOBODY = 65534
ROUNDS_MIN = 50


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """Creates a directory that every user can list, like /var/backups."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


class Watch:
    """Which files the other user could read, and which permissions root saw."""

    def __init__(self) -> None:
        self.read: list[str] = []  # paths that the other user could open
        self.open_modes: set[str] = set()  # modes and paths of files that others have permissions for
        self.names: set[str] = set()


@contextlib.contextmanager
def watched(directory: Path) -> Iterator[Watch]:
    """Runs two processes during the `with` block: one opens files as nobody, and the other records modes as root."""
    watch = Watch()
    stop = directory.parent / f"{directory.name}.stop"
    children = [_fork(lambda: _open_all(directory), stop, NOBODY), _fork(lambda: _modes(directory), stop, None)]
    try:
        yield watch
    finally:
        stop.touch()
        opened, modes = (_result(child, pipe) for child, pipe in children)
        stop.unlink()
        watch.read = opened
        for line in modes:
            mode, _, path = line.partition(" ")
            watch.names.add(Path(path).name)
            if int(mode, 8) & 0o077:
                watch.open_modes.add(line)


def _fork(look: Callable[[], set[str]], stop: Path, user: int | None) -> tuple[int, int]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        found: set[str] = set()
        try:
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            rounds = 0
            while rounds < ROUNDS_MIN or not stop.exists():
                found |= look()
                rounds += 1
                time.sleep(0.001)  # leaves CPU time for the watched processes
        except BaseException as error:
            found.add(f"0777 watcher failed: {error!r}")
        finally:
            with os.fdopen(write, "w") as pipe:
                pipe.write("\n".join(sorted(found)))
            os._exit(0)
    os.close(write)
    return child, read


def _result(child: int, pipe: int) -> list[str]:
    with os.fdopen(pipe) as lines:
        found = [line for line in lines.read().split("\n") if line]
    os.waitpid(child, 0)
    return found


def _paths(directory: Path) -> Iterator[str]:
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            yield f"{parent}/{name}"


def _open_all(directory: Path) -> set[str]:
    found = set()
    for path in _paths(directory):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDONLY))
            found.add(path)
    return found


def _modes(directory: Path) -> set[str]:
    found = set()
    for path in _paths(directory):
        with contextlib.suppress(OSError):
            found.add(f"{os.lstat(path).st_mode & 0o777:04o} {path}")
    return found
