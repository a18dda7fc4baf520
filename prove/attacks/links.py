"""Another user puts links into root's data directory, or replaces the directory, before and while root runs commands.

The other user owns the directory, or may write to it or to the directory that contains it. Figures: the commands that
root ran, how many of them were refused, and the outside files that changed.
"""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from harness.claims import Skipped, hold, temporary_directory
from harness.commands import Commands
from harness.other_user import as_nobody
from harness.servers import Server
from harness.watched_files import NOBODY
from prove.attacks.altered import program
from prove.proof import Figures, Scale

TIMEOUT = 60
LIST, ADD, SERVE = ("keys", "list"), ("keys", "create", "--plan", "free"), ("serve",)
BACKUP, RESTORE, EXPORT = ("backup", "made.zip", "--force"), ("restore", "backup.zip", "--force"), ("pets", "export")
COMMANDS = (LIST, ADD, BACKUP, RESTORE, SERVE)
# The names under which LMDB, SQLite and Petstore would follow a link, and whether they would expect a directory.
LINKS = {
    "gate.mdb-lock": False, "lock": False, "live.db": False, "live.db-turn": False, "live.db-wal": False,
    "gate.mdb": False, "gate.mdb-boot": False, "last-backup": False, "service-address": False, "metrics": True,
    "restore": True, "restore.part": True,
}  # fmt: skip


class _Root:
    """Runs commands as root, and counts them."""

    def __init__(self, place: Path, words: list[str]) -> None:
        self._place = place
        self._words = words
        self.codes: list[int] = []

    def run(self, data: Path, command: tuple[str, ...]) -> int:
        """Runs a command and returns its exit code. Stops the service if the command starts one."""
        self.codes.append(self._serve(data) if command == SERVE else self._run(data, command))
        return self.codes[-1]

    def _run(self, data: Path, command: tuple[str, ...]) -> int:
        variables = {**os.environ, "PETSTORE_DATA": str(data), "PYTHONPATH": str(Path(__file__).parents[2])}
        line = [sys.executable, "-m", *self._words, *command]
        return subprocess.run(line, cwd=self._place, env=variables, capture_output=True, timeout=TIMEOUT).returncode

    def _serve(self, data: Path) -> int:
        server = Server(data)
        server.program = self._words
        try:
            server.start()
            return server.stop()
        except AssertionError:  # the service refused to start
            return 2
        finally:
            server.kill()


def prove(scale: Scale) -> Figures:
    if os.geteuid() != 0:
        raise Skipped("only root can be a different user than the attacker")
    with temporary_directory() as place:
        place.chmod(0o755)
        root = _Root(place, program("other_owners_accepted") if scale.plant else program())
        for name in LINKS if scale.full else list(LINKS)[:1]:
            for command in COMMANDS if scale.full else (LIST,):
                _planted_by_the_owner(place, root, name, command)
                _planted_by_a_writer(place, root, name, command)
        for command in COMMANDS if scale.full else (LIST,):
            _planted_meanwhile(place, root, command)
            for owner, mode in ((NOBODY, 0o700), (NOBODY, 0o755), (0, 0o777)):
                _replaced(place, root, command, owner, mode)
        _planted_next_to_the_target(place, root)
    return {"commands of root": len(root.codes), "refused": root.codes.count(2), "files that differ": 0}


def _planted_by_the_owner(place: Path, root: _Root, name: str, command: tuple[str, ...]) -> None:
    with _precious(place) as precious, _data(place) as data:
        for path in (data, *data.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        as_nobody(partial(_plant, data, precious, name))
        before = _state(data)
        code = root.run(data, command)
        unchanged = _state(data) == before
    hold(code == 2 and unchanged, f"root does not run {command} in another user's directory")


def _planted_by_a_writer(place: Path, root: _Root, name: str, command: tuple[str, ...]) -> None:
    with _precious(place) as precious, _data(place) as data:
        data.chmod(0o777)
        hold(as_nobody(partial(_plant, data, precious, name)) == "None", f"the other user can plant {name}")
        code = root.run(data, command)
    hold(code == 2, f"{command} does not open another user's {name}")


def _planted_meanwhile(place: Path, root: _Root, command: tuple[str, ...]) -> None:
    with _precious(place) as precious, _data(place) as data:
        data.chmod(0o777)
        with _meanwhile(partial(_plant_all, data, precious)):
            root.run(data, command)
        _closed(data, precious)


def _closed(data: Path, precious: Path) -> None:
    """Raises Broken if the other user can still write to the directory."""
    hold(not data.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), "the command removes others' permission to write")
    hold(as_nobody(partial(_plant, data, precious, "lock")).startswith("PermissionError"), "nothing more is planted")


def _replaced(place: Path, root: _Root, command: tuple[str, ...], owner: int, mode: int) -> None:
    """The other user replaces the directory by another one, in which every name is a link."""
    with _precious(place) as precious, _data(place) as original:
        shared = place / "shared"
        shared.mkdir()
        data = original.rename(shared / "data")
        shared.chmod(mode)
        os.chown(shared, owner, owner)
        try:
            hold(root.run(data, command) == 2, f"{command} is refused where another user could replace the directory")
            with _meanwhile(partial(_swap, shared, precious)):
                hold(root.run(data, command) == 2, f"{command} is refused while another user replaces the directory")
        finally:
            shutil.rmtree(shared)


def _planted_next_to_the_target(place: Path, root: _Root) -> None:
    with _precious(place) as precious, _data(place) as data:
        target = place / "pets.csv"
        target.with_name("pets.csv.part").symlink_to(precious / "file")
        hold(root.run(data, (*EXPORT, str(target))) == 0, "the export succeeds")
        hold(not target.is_symlink() and stat.S_IMODE(target.stat().st_mode) == 0o600, "the export is a private file")
        target.unlink()
        target.symlink_to(precious / "file")
        hold(root.run(data, (*EXPORT, str(target), "--force")) == 2, "an export does not follow a link")
        target.unlink()
        target.with_name("pets.csv.part").unlink()


# The other user


def _plant(data: Path, precious: Path, name: str) -> None:
    link = data / name
    if link.is_dir() and not link.is_symlink():
        link.rename(data / f"{name}.old")
    link.unlink(missing_ok=True)
    link.symlink_to(precious if LINKS[name] else precious / "file")


def _plant_all(data: Path, precious: Path) -> None:
    for name in LINKS:
        _plant(data, precious, name)


def _swap(shared: Path, precious: Path) -> None:
    """Replaces the directory by one with links, or moves it back."""
    data, hidden, own = shared / "data", shared / "hidden", shared / "own"
    if hidden.exists():
        data.rename(own)
        hidden.rename(data)
        return
    if not own.exists():
        own.mkdir()
        _plant_all(own, precious)
    data.rename(hidden)
    own.rename(data)


@contextlib.contextmanager
def _meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Repeats `work` as the user nobody, in another process."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            while True:
                with contextlib.suppress(OSError):
                    work()
        finally:
            os._exit(1)
    try:
        yield
        hold(os.waitpid(child, os.WNOHANG) == (0, 0), "the other user is still at work")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# The data, and the files outside


@contextlib.contextmanager
def _precious(place: Path) -> Iterator[Path]:
    """Creates a directory with files of root. Raises Broken if anything in it has changed at the end."""
    precious = place / "precious"
    for directory in (precious, precious / "new", precious / "old"):
        directory.mkdir(mode=0o700)
    for name in ("file", "new/live.db", "0.lock", "counter_0.db"):
        (precious / name).write_text("precious")
        (precious / name).chmod(0o600)
    before = _state(precious)
    try:
        yield precious
        after = _state(precious)
        changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        hold(not changed, f"a command that root ran changed {changed} outside the data directory")
    finally:
        shutil.rmtree(precious)


def _state(path: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for each in (path, *path.rglob("*")):
        status = each.lstat()
        content = each.read_bytes() if each.is_file() else b""
        found[str(each.relative_to(path.parent))] = (
            status.st_uid, status.st_gid, status.st_mode, status.st_mtime_ns, content
        )  # fmt: skip
    return found


@contextlib.contextmanager
def _data(place: Path) -> Iterator[Path]:
    """Creates a data directory of root with an animal."""
    original, data = place / "original", place / "data"
    if not original.exists():
        commands = Commands(Server(original))
        commands.text("pets", "add", "--name", "Rex", "--category-id", "1")
        commands.text("backup", str(place / "backup.zip"))
    shutil.copytree(original, data)
    try:
        yield data
    finally:
        shutil.rmtree(data, ignore_errors=True)
